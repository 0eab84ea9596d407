//! A column of text of a table in Parquet.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::basic::{LogicalType, Type};
use parquet::column::reader::{ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;

use super::LONGEST;
use crate::{DataError, Result};

/// Rows that are read at once. They share the memory of the pages that they are in.
const ROWS: usize = 1 << 10;

/// The texts of a file, one in each row. A page of the column is in memory at a time, and its dictionary.
pub(crate) struct ParquetRows<'a> {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    field: &'a str,
    /// Which column it is.
    column: usize,
    /// The next row group, and what is left of the one before.
    group: usize,
    rest: Option<ColumnReaderImpl<ByteArrayType>>,
    /// Texts that were read, the next one last.
    read: Vec<ByteArray>,
    /// Rows whose text has been given.
    row: u64,
}

impl<'a> ParquetRows<'a> {
    /// Opens a file.
    ///
    /// # Errors
    /// If it is no Parquet, or has no column of text of this name.
    pub fn open(path: &Path, field: &'a str) -> Result<ParquetRows<'a>> {
        let file = File::open(path).map_err(DataError::io("open", path))?;
        let reader = SerializedFileReader::new(file).map_err(|error| wrong(path, 0, error))?;
        let schema = reader.metadata().file_metadata().schema_descr();
        let refused = |reason| DataError::Column { path: path.to_path_buf(), row: 0, reason };
        let fields = schema.root_schema().get_fields();
        if !fields.iter().any(|it| it.name() == field) {
            let fields: Vec<&str> = fields.iter().map(|field| field.name()).collect();
            return Err(refused(format!(
                "it has no column {field:?}, but {}: say which with --text-field",
                fields.join(", ")
            )));
        }
        let is_meant =
            |column: &ColumnDescriptor| column.path().parts() == [field] && is_text(column);
        let Some(column) = schema.columns().iter().position(|column| is_meant(column)) else {
            return Err(refused(format!(
                "its column {field:?} is no text: say which is with --text-field"
            )));
        };
        let path = path.to_path_buf();
        Ok(ParquetRows { path, reader, field, column, group: 0, rest: None, read: vec![], row: 0 })
    }

    /// The next text; none behind the last.
    ///
    /// # Errors
    /// If the file cannot be read, or a row has no text.
    pub fn next(&mut self) -> Result<Option<String>> {
        while self.read.is_empty() {
            if self.rest.is_none() {
                if self.group == self.reader.num_row_groups() {
                    return Ok(None);
                }
                let group = self.reader.get_row_group(self.group);
                let column = group.and_then(|group| group.get_column_reader(self.column));
                let column = column.map_err(|error| wrong(&self.path, 0, error))?;
                self.rest = Some(get_typed_column_reader(column));
                self.group += 1;
            }
            self.read_rows()?;
        }
        self.row += 1;
        let text = self.read.pop().map(|text| self.text(text.data()).map(str::to_owned));
        text.transpose()
    }

    /// Reads rows of the group that is open; none where it has no more.
    fn read_rows(&mut self) -> Result<()> {
        let Some(column) = &mut self.rest else { return Ok(()) };
        let mut levels = vec![];
        let read = column.read_records(ROWS, Some(&mut levels), None, &mut self.read);
        let (rows, texts, _) = read.map_err(|error| wrong(&self.path, self.row, error))?;
        if texts < rows {
            // A level of 0 is a row that has none.
            let before = levels.iter().take_while(|&&level| level > 0).count() as u64;
            let reason = format!("its {:?} is null", self.field);
            let (path, row) = (self.path.clone(), self.row + before + 1);
            return Err(DataError::Column { path, row, reason });
        }
        if rows == 0 {
            self.rest = None;
        }
        self.read.reverse();
        Ok(())
    }

    fn text<'b>(&self, bytes: &'b [u8]) -> Result<&'b str> {
        let reason = match str::from_utf8(bytes) {
            Ok(text) if text.len() <= LONGEST => return Ok(text),
            Ok(text) => format!("its {:?} has {} bytes, over {LONGEST}", self.field, text.len()),
            Err(_) => format!("its {:?} is not UTF-8 text", self.field),
        };
        Err(DataError::Column { path: self.path.clone(), row: self.row, reason })
    }
}

/// Whether each row has one text at most.
fn is_text(column: &ColumnDescriptor) -> bool {
    let is_meant = match column.logical_type_ref() {
        // Some programs write text without saying so.
        None | Some(LogicalType::String | LogicalType::Json) => true,
        Some(_) => false,
    };
    is_meant && column.physical_type() == Type::BYTE_ARRAY && column.max_rep_level() == 0
}

fn wrong(path: &Path, row: u64, error: ParquetError) -> DataError {
    let reason = match row {
        0 => format!("it cannot be read as Parquet: {error}"),
        _ => format!("what follows cannot be read as Parquet: {error}"),
    };
    DataError::Column { path: path.to_path_buf(), row, reason }
}
