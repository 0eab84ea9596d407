//! Samples from a table with categories: numbers, indices and a yes or no per row.

use std::path::Path;

use crate::Result;
use crate::fields::{category, each_row, number, table_error};
use crate::source::{Field, Part, Source};
use crate::table::Order;

/// Rows of `dense` numbers, a category of each of several features, and a label of 0 or 1, in this order.
/// Serves the inputs `features`, `category.0`, `category.1`, ..., and `targets`.
///
/// Training rows come in the order of a [`Table`](crate::Table) of the same seed; the last rows are the
/// validation part.
#[derive(Clone, Debug, PartialEq)]
pub struct Records {
    numbers: Vec<f32>,
    categories: Vec<u32>,
    labels: Vec<u32>,
    dense: usize,
    features: usize,
    order: Order,
}

impl Records {
    /// Reads a file of comma-separated values: `dense` numbers, then a category below each of `rows`, then
    /// the label. A first row without a number is taken for a header.
    ///
    /// # Errors
    /// If the file cannot be read, a row has another number of columns, a number is not finite, a
    /// category not below its number of rows, a label neither 0 nor 1, or there are too few rows.
    pub fn open(
        path: &Path,
        dense: usize,
        rows: &[usize],
        validation_fraction: f64,
        seed: u64,
    ) -> Result<Records> {
        let needed = dense + rows.len() + 1;
        let (mut numbers, mut categories, mut labels) = (vec![], vec![], vec![]);
        each_row(path, |record| {
            if record.len() != needed {
                return Err(format!(
                    "{} columns, but the model reads {needed}: {dense} numbers, {} categories and a \
                     label",
                    record.len(),
                    rows.len()
                ));
            }
            let mut fields = record.iter();
            for field in fields.by_ref().take(dense) {
                numbers.push(number(field)?);
            }
            for (feature, &below) in rows.iter().enumerate() {
                categories.push(category(fields.next().unwrap_or_default(), feature, below)?);
            }
            match fields.next() {
                Some("0") => labels.push(0),
                Some("1") => labels.push(1),
                other => {
                    let found = other.unwrap_or_default();
                    return Err(format!("{found:?} is no label: the last is 0 or 1"));
                }
            }
            Ok(())
        })?;
        let wrong = |reason| table_error(path, None, reason);
        let order = Order::new(labels.len(), validation_fraction, seed).map_err(wrong)?;
        Ok(Records { numbers, categories, labels, dense, features: rows.len(), order })
    }

    /// Rows of one epoch.
    pub fn training_len(&self) -> u64 {
        self.order.training_len()
    }

    /// Bytes that they take in memory.
    pub fn held_bytes(&self) -> u64 {
        let indices = size_of_val(&self.categories[..]) + size_of_val(&self.labels[..]);
        (size_of_val(&self.numbers[..]) + indices) as u64
    }

    /// A digest of all rows, to notice on resuming that the data changed.
    pub fn digest(&self) -> String {
        let mut digest = blake3::Hasher::new();
        for number in &self.numbers {
            digest.update(&number.to_le_bytes());
        }
        for index in self.categories.iter().chain(&self.labels) {
            digest.update(&index.to_le_bytes());
        }
        digest.finalize().to_hex().to_string()
    }
}

impl Source for Records {
    fn field<'a>(
        &'a self,
        part: Part,
        position: u64,
        input: &str,
        _: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>> {
        Ok(self.row_field(part, position, input))
    }

    fn validation_len(&self) -> u64 {
        self.order.validation_len()
    }
}

impl Records {
    fn row_field(&self, part: Part, position: u64, input: &str) -> Option<Field<'_>> {
        let row = self.order.row(part, position)?;
        match input {
            "features" => {
                self.numbers.get(row * self.dense..(row + 1) * self.dense).map(Field::Reals)
            }
            "targets" => self.labels.get(row..=row).map(Field::Indices),
            _ => {
                let feature = input.strip_prefix("category.")?.parse::<usize>().ok()?;
                let at = row * self.features + feature;
                let known = feature < self.features;
                self.categories.get(at..=at).filter(|_| known).map(Field::Indices)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Records> {
        read_with(text, &[3, 40_000_000])
    }

    /// Rows of two numbers, so many categories of each kind, and a label.
    fn read_with(text: &str, categories: &[usize]) -> Result<Records> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("records.csv");
        std::fs::write(&path, text).expect("a temporary file");
        Records::open(&path, 2, categories, 0.25, 5)
    }

    #[test]
    fn an_epoch_visits_every_training_row_once_and_its_columns_stay_together() {
        let rows = (0..8).map(|row| {
            format!("{row},{row}.5,{},{},{row},{}\n", row % 3, row + 39_999_000, row % 2)
        });
        // More categories than numbers.
        let records = read_with(&rows.collect::<String>(), &[3, 40_000_000, 8]).expect("records");
        assert_eq!(records.validation_len(), 2);
        for epoch in 0..3 {
            let mut seen = vec![];
            for position in epoch * 6..(epoch + 1) * 6 {
                let field = |input: &str| records.row_field(Part::Training, position, input);
                let Some(Field::Reals(&[first, second])) = field("features") else {
                    panic!("two numbers for every position")
                };
                let row = first as u32;
                assert_eq!(second, first + 0.5);
                assert_eq!(field("category.0"), Some(Field::Indices(&[row % 3])));
                assert_eq!(field("category.1"), Some(Field::Indices(&[row + 39_999_000])));
                assert_eq!(field("targets"), Some(Field::Indices(&[row % 2])));
                assert_eq!(field("category.2"), Some(Field::Indices(&[row])));
                assert_eq!((field("category.3"), field("tokens")), (None, None));
                seen.push(row);
            }
            seen.sort();
            assert_eq!(seen, (0..6).collect::<Vec<_>>());
        }
        let last = records.row_field(Part::Validation, 1, "features");
        assert_eq!(last, Some(Field::Reals(&[7.0, 7.5])));
        assert_eq!(records.row_field(Part::Validation, 2, "features"), None);
    }

    #[test]
    fn a_header_is_left_out_and_bad_rows_are_named() {
        let plain = read("1,2,0,5,1\n3,4,1,6,0\n").expect("records");
        assert_eq!(read("a,b,c,d,e\n1, 2, 0, 5, 1\n3,4,1,6,0\n").expect("records"), plain);
        for (text, part) in [
            ("1,2,0,5,1\n3,x,1,6,0\n", ".csv:2: \"x\" is no finite number"),
            // Missing values are the usual fault of such tables.
            ("1,,0,5,1\n3,4,1,6,0\n", ".csv:1: \"\" is no finite number"),
            ("1,nan,0,5,1\n", ".csv:1: \"nan\" is no finite number"),
            ("1,2,3,5,1\n", ".csv:1: \"3\" is no category.0: a whole number from 0 to 2"),
            ("1,2,-1,5,1\n", ".csv:1: \"-1\" is no category.0"),
            (
                "1,2,0,1.5,1\n",
                ".csv:1: \"1.5\" is no category.1: a whole number from 0 to 39999999",
            ),
            ("1,2,0,5,2\n", ".csv:1: \"2\" is no label: the last is 0 or 1"),
            (
                "1,2,0,1\n",
                ".csv:1: 4 columns, but the model reads 5: 2 numbers, 2 categories and a label",
            ),
            ("1,2,0,5,1,0\n", ".csv:1: 6 columns, but the model reads 5"),
            ("1,2,0,5,1\n", "1 rows leave none to train on"),
            ("", "there are no rows"),
        ] {
            let message = read(text).expect_err("bad records").to_string();
            assert!(message.contains(part), "{message} does not say {part}");
        }
    }
}
