//! Rows of a table that a trained model is to classify.

use std::path::Path;

use crate::Result;
use crate::fields::{category, class, each_row, number};
use crate::source::{Field, Part, Source};

/// Rows of numbers, then a category of each of several features, then perhaps the class, as a
/// [`Table`](crate::Table) (which has no categories) and [`Records`](crate::Records) have them. Serves the inputs
/// `features` and `category.0`, `category.1`, ...: all rows are for validation, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    numbers: Vec<f32>,
    categories: Vec<u32>,
    classes: Option<Vec<u32>>,
    count: usize,
    dense: usize,
    features: usize,
}

/// How many names of classes a message has at most.
const MOST_NAMED: usize = 20;

/// What a model reads of a row, and tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns<'a> {
    /// How many numbers come first.
    pub numbers: usize,
    /// Below what the categories that follow are.
    pub categories: &'a [usize],
    /// Below what the class is, if a row ends in it.
    pub classes: usize,
    /// What the classes are called, in alphabetical order, where rows name theirs; empty where they are numbers.
    pub names: &'a [String],
}

impl Columns<'_> {
    /// How many there are before the class.
    fn needed(&self) -> usize {
        self.numbers + self.categories.len()
    }

    /// The class that a field says.
    fn class(&self, field: &str) -> std::result::Result<u32, String> {
        let unknown =
            |known: String| Err(format!("{field:?} is no class that the model knows: {known}"));
        if !self.names.is_empty() {
            let some = self.names.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>().join(", ");
            let more = if self.names.len() > MOST_NAMED { " and so on" } else { "" };
            return match self.names.binary_search_by(|name| name.as_str().cmp(field)) {
                Ok(class) => Ok(class as u32),
                Err(_) => unknown(format!("{some}{more}")),
            };
        }
        match class(field).filter(|&class| (class as usize) < self.classes) {
            Some(class) => Ok(class),
            None => unknown(format!("a whole number from 0 to {}", self.classes.saturating_sub(1))),
        }
    }

    /// What they are, in words.
    fn described(&self) -> String {
        let mut text = format!("{} numbers", self.numbers);
        if !self.categories.is_empty() {
            text += &format!(" and {} categories", self.categories.len());
        }
        text
    }
}

impl Rows {
    /// Reads a file of comma-separated values, whose rows have the class as a last column or all have not. A first
    /// row without a number is taken for a header.
    ///
    /// # Errors
    /// If the file cannot be read, there is no row, rows have other columns than these, a number is not finite, a
    /// category or class not below what it has to be.
    pub fn open(path: &Path, columns: Columns<'_>) -> Result<Rows> {
        let needed = columns.needed();
        let (mut numbers, mut categories, mut classes) = (vec![], vec![], vec![]);
        let mut found = None;
        let mut count = 0;
        each_row(path, |record| {
            let width = *found.get_or_insert(record.len());
            if width != needed && width != needed + 1 {
                return Err(format!(
                    "{width} columns, but the model reads {needed}: {}; one more may be the class",
                    columns.described()
                ));
            }
            let mut fields = record.iter();
            for field in fields.by_ref().take(columns.numbers) {
                numbers.push(number(field)?);
            }
            for (feature, &below) in columns.categories.iter().enumerate() {
                categories.push(category(fields.next().unwrap_or_default(), feature, below)?);
            }
            if let Some(field) = fields.next() {
                classes.push(columns.class(field)?);
            }
            count += 1;
            Ok(())
        })?;
        let classes = (found == Some(needed + 1)).then_some(classes);
        let (dense, features) = (columns.numbers, columns.categories.len());
        Ok(Rows { numbers, categories, classes, count, dense, features })
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The class of each row, if they end in it.
    pub fn classes(&self) -> Option<&[u32]> {
        self.classes.as_deref()
    }

    fn row_field(&self, row: usize, input: &str) -> Option<Field<'_>> {
        if input == "features" {
            return self.numbers.get(row * self.dense..(row + 1) * self.dense).map(Field::Reals);
        }
        let feature = input.strip_prefix("category.")?.parse::<usize>().ok()?;
        let at = row * self.features + feature;
        self.categories.get(at..=at).filter(|_| feature < self.features).map(Field::Indices)
    }
}

impl Source for Rows {
    fn field<'a>(
        &'a self,
        _: Part,
        position: u64,
        input: &str,
        _: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>> {
        let row = usize::try_from(position).ok().filter(|&row| row < self.count);
        Ok(row.and_then(|row| self.row_field(row, input)))
    }

    fn validation_len(&self) -> u64 {
        self.count as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, categories: &[usize]) -> Result<Rows> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("rows.csv");
        std::fs::write(&path, text).expect("a temporary file");
        Rows::open(&path, Columns { numbers: 2, categories, classes: 3, names: &[] })
    }

    #[test]
    fn rows_that_name_their_class_are_of_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("rows.csv");
        let names = ["blue", "red"].map(str::to_owned);
        let columns = Columns { numbers: 1, categories: &[], classes: 3, names: &names };
        std::fs::write(&path, "1,red\n2,blue\n").expect("a temporary file");
        let rows = Rows::open(&path, columns).expect("rows");
        assert_eq!(rows.classes(), Some(&[1, 0][..]));
        for (text, said) in [("1,green\n", "\"green\" is no"), ("1,0\n", "\"0\" is no")] {
            std::fs::write(&path, text).expect("a temporary file");
            let message = Rows::open(&path, columns).expect_err(text).to_string();
            assert!(message.contains(said) && message.contains("knows: blue, red"), "{message}");
        }
    }

    #[test]
    fn rows_end_in_the_class_or_do_not() {
        let with = read("a,b,class\n1, 2, 0\n3,4,2.0\n", &[]).expect("rows");
        assert_eq!((with.count(), with.classes()), (2, Some(&[0, 2][..])));
        let without = read("1,2\n3,4\n", &[]).expect("rows");
        assert_eq!((without.count(), without.classes()), (2, None));
        for rows in [with, without] {
            assert_eq!(rows.row_field(1, "features"), Some(Field::Reals(&[3.0, 4.0])));
            assert_eq!(
                (rows.row_field(1, "targets"), rows.row_field(1, "category.0")),
                (None, None)
            );
            let mut room = vec![];
            let behind = rows.field(Part::Validation, 2, "features", &mut room).expect("rows");
            assert_eq!(behind, None);
        }
        let both = read("1,2,5,0,1\n3,4,6,1,0\n", &[7, 2]).expect("rows");
        assert_eq!(both.classes(), Some(&[1, 0][..]));
        assert_eq!(both.row_field(1, "category.0"), Some(Field::Indices(&[6])));
        assert_eq!(both.row_field(0, "category.1"), Some(Field::Indices(&[0])));
        assert_eq!(both.row_field(0, "category.2"), None);
        assert_eq!(read("1,2,5,0\n", &[7, 2]).expect("rows").classes(), None);
    }

    #[test]
    fn rows_that_do_not_fit_are_named() {
        for (text, part) in [
            ("1,2,0\n3,x,1\n", ".csv:2: \"x\" is no finite number"),
            ("1,2\n3,\n", ".csv:2: \"\" is no finite number"),
            ("1,2\n3,4,1\n", ".csv:2: 3 columns, but rows before it have 2"),
            (
                "1\n",
                ".csv:1: 1 columns, but the model reads 2: 2 numbers; one more may be the class",
            ),
            ("a,b\n1,2,3,4\n", ".csv:2: 4 columns, but the model reads 2"),
            (
                "1,2,3\n",
                ".csv:1: \"3\" is no class that the model knows: a whole number from 0 to 2",
            ),
            ("1,2,0.5\n", ".csv:1: \"0.5\" is no class"),
            ("1,2,-1\n", ".csv:1: \"-1\" is no class"),
            ("1,2,red\n", ".csv:1: \"red\" is no class"),
            ("a,b\n", "there are no rows"),
            ("", "there are no rows"),
        ] {
            let message = read(text, &[]).expect_err("wrong rows").to_string();
            assert!(message.contains(part), "{message} does not say {part}");
        }
        let message = read("1,2,7,0\n", &[7, 2]).expect_err("a wrong category").to_string();
        assert!(message.contains(".csv:1: \"7\" is no category.0: a whole number from 0 to 6"));
        let message = read("1,2\n", &[7, 2]).expect_err("no categories").to_string();
        assert!(message.contains("the model reads 4: 2 numbers and 2 categories"), "{message}");
    }
}
