//! Files of measurements for tests.

use std::path::{Path, PathBuf};

use shardloom_validate::{Measurements, Row, ValidateError, read};

/// A file that is part of the project.
pub fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

/// What a file of this text is read as.
pub fn read_text(text: &str) -> Result<Measurements, ValidateError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file.csv");
    std::fs::write(&path, text).expect("the folder can be written");
    read(&path)
}

/// The header of a shipped file, and the text of one of its rows.
pub fn line_of(name: &str, line: usize) -> (String, String) {
    let text = std::fs::read_to_string(shipped(name)).expect("it is part of the project");
    let mut lines = text.lines();
    let header = lines.next().expect("a header").to_owned();
    (header, lines.nth(line - 2).expect("a row").to_owned())
}

/// A row of the published schema, as text, with other values in some columns.
pub fn changed(changes: &[(&str, &str)]) -> String {
    let (header, row) = line_of("internevo.csv", 2);
    let mut cells: Vec<&str> = row.split(',').collect();
    for (column, value) in changes {
        let index = header.split(',').position(|it| it == *column).expect("a column");
        cells[index] = value;
    }
    format!("{header}\n{}\n", cells.join(","))
}

/// That row, read.
pub fn row(changes: &[(&str, &str)]) -> Row {
    read_text(&changed(changes)).expect("a good file").rows.remove(0)
}
