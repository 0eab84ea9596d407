//! Samples from a table: features and a class per row.

use std::collections::BTreeSet;
use std::path::Path;

use crate::Result;
use crate::fields::{class, each_row, number, other_separator, table_error};
use crate::permutation::Permutation;
use crate::source::{Field, Part, Source};

/// Rows of numbers, the last column being the class: a whole number from 0, or in all rows a name, of which the n-th in
/// alphabetical order stands for class n. Serves the inputs `features` and `targets`.
///
/// Training rows come shuffled, every row once per epoch, in an order that depends on nothing but the
/// seed and the epoch. Which rows are for validation depends on how many there are and on nothing else: tables are often
/// sorted, so that their last rows would be of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    features: Vec<f32>,
    classes: Vec<u32>,
    /// The name of each class, if they have some.
    names: Vec<String>,
    columns: usize,
    order: Order,
}

/// Which row is at which position: training rows shuffled, anew in every epoch, and then those to validate on, always in
/// the same order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Order {
    rows: u64,
    training_rows: u64,
    seed: u64,
    /// Whether rows to validate on are drawn from all, and not the last ones.
    drawn: bool,
}

impl Order {
    /// The order of so many rows, the last `validation_fraction` of which, rounded up, are for validation.
    ///
    /// # Errors
    /// If the fraction is none, or no row is left to train on.
    pub(crate) fn new(
        rows: usize,
        validation_fraction: f64,
        seed: u64,
    ) -> std::result::Result<Order, String> {
        if !(0.0..1.0).contains(&validation_fraction) {
            return Err(format!(
                "validation fraction is {validation_fraction}, but must be at least 0 and below 1"
            ));
        }
        let validation = (rows as f64 * validation_fraction).ceil() as u64;
        let training_rows = (rows as u64).saturating_sub(validation);
        if training_rows == 0 {
            return Err(format!("{rows} rows leave none to train on"));
        }
        Ok(Order { rows: rows as u64, training_rows, seed, drawn: false })
    }

    /// The same with rows to validate on that are drawn from all.
    pub(crate) fn drawn(self) -> Order {
        Order { drawn: self.training_rows < self.rows, ..self }
    }

    /// The row at `position`; none behind those to validate on.
    pub(crate) fn row(&self, part: Part, position: u64) -> Option<usize> {
        let place = match part {
            Part::Training => {
                let (epoch, index) = (position / self.training_rows, position % self.training_rows);
                Permutation::new(self.training_rows, self.seed, epoch).image(index)
            }
            Part::Validation => self.training_rows.checked_add(position)?,
        };
        let row = (place < self.rows).then(|| match self.drawn {
            // Runs of all seeds are validated on the same rows.
            true => Permutation::new(self.rows, 0, 0).image(place),
            false => place,
        })?;
        Some(row as usize)
    }

    pub(crate) fn training_len(&self) -> u64 {
        self.training_rows
    }

    pub(crate) fn validation_len(&self) -> u64 {
        self.rows - self.training_rows
    }
}

/// Whether a first row names columns: none of its fields is a number.
pub(crate) fn is_header(record: &csv::StringRecord) -> bool {
    record.iter().all(|field| field.parse::<f32>().is_err())
}

impl Table {
    /// Reads a file of comma-separated values. A first row without a number is taken for a header.
    ///
    /// # Errors
    /// If the file cannot be read, a field is no finite number, a class no whole number, rows differ in
    /// length, some rows name their class and others do not, or there are too few rows.
    pub fn open(path: &Path, validation_fraction: f64, seed: u64) -> Result<Table> {
        let (mut features, mut classes, mut columns) = (vec![], vec![], 0);
        let mut named: Option<Vec<String>> = None;
        each_row(path, |record| {
            let before = record.len().saturating_sub(1);
            let numbers = record.iter().take(before).map(number);
            let mut numbers = numbers.collect::<std::result::Result<Vec<f32>, String>>()?;
            let last = record.iter().next_back().unwrap_or_default();
            if numbers.is_empty() {
                let other = other_separator(record);
                return Err(format!(
                    "a row is features and then a class, with commas between them{other}"
                ));
            }
            let is_name = !last.is_empty() && last.parse::<f32>().is_err();
            // The first row says which it is.
            let by_name = match (&mut named, is_name) {
                (None, true) if classes.is_empty() => Some(named.insert(vec![])),
                (named, _) => named.as_mut(),
            };
            match (by_name, class(last)) {
                (Some(names), _) if is_name => names.push(last.to_owned()),
                (Some(_), _) => {
                    return Err(format!(
                        "{last:?} is no name of a class, as rows before it have: a number stands for no name"
                    ));
                }
                (None, Some(class)) => classes.push(class),
                (None, None) => {
                    return Err(format!(
                        "{last:?} is no class: the last of a row is a whole number from 0, or in all rows the name of a \
                         class"
                    ));
                }
            }
            columns = numbers.len();
            features.append(&mut numbers);
            Ok(())
        })?;
        let named = named.unwrap_or_default();
        let names: Vec<String> =
            named.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        let of_name = |name: &String| names.binary_search(name).map(|class| class as u32);
        classes.extend(named.iter().flat_map(of_name));
        let order = Order::new(classes.len(), validation_fraction, seed)
            .map_err(|reason| table_error(path, None, reason))?
            .drawn();
        Ok(Table { features, classes, names, columns, order })
    }

    /// A table from rows of `columns` features each, one class per row.
    ///
    /// # Errors
    /// If the numbers of features and classes do not fit together, or there are too few rows.
    pub fn from_rows(
        features: Vec<f32>,
        classes: Vec<u32>,
        validation_fraction: f64,
        seed: u64,
    ) -> Result<Table> {
        let wrong = |reason: String| table_error(Path::new("rows"), None, reason);
        if classes.is_empty()
            || features.is_empty()
            || !features.len().is_multiple_of(classes.len())
        {
            let reason = format!(
                "{} features and {} classes are no rows of equal length",
                features.len(),
                classes.len()
            );
            return Err(wrong(reason));
        }
        let columns = features.len() / classes.len();
        let order = Order::new(classes.len(), validation_fraction, seed).map_err(wrong)?.drawn();
        Ok(Table { features, classes, names: vec![], columns, order })
    }

    /// Features of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// What each class is called, in order; empty where classes are numbers.
    pub fn class_names(&self) -> &[String] {
        &self.names
    }

    /// The number of classes: one more than the largest.
    pub fn classes(&self) -> usize {
        self.classes.iter().max().map_or(0, |&most| most as usize + 1)
    }

    /// Makes sure that a model which tells `known` classes apart knows all of them.
    ///
    /// # Errors
    /// If there are more, with the first row of `path`, which the table was read from, that has the largest.
    pub fn require_classes(&self, path: &Path, model: &str, known: usize) -> Result<()> {
        let needed = self.classes();
        if needed <= known {
            return Ok(());
        }
        if !self.names.is_empty() {
            let reason = format!(
                "there are {needed} names of classes, but {model} tells {known} classes apart; give the model {needed} or \
                 more (classes={needed} of an mlp), or other data"
            );
            return Err(table_error(path, None, reason));
        }
        let largest = needed as u32 - 1;
        let reason = || {
            format!(
                "class {largest}, but {model} tells {known} classes apart, counted from 0; give the model {needed} \
                 or more (classes={needed} of an mlp), or other data"
            )
        };
        each_row(path, |record| match record.iter().next_back().and_then(class) {
            Some(it) if it == largest => Err(reason()),
            _ => Ok(()),
        })?;
        Err(table_error(path, None, reason()))
    }

    /// Rows of one epoch.
    pub fn training_len(&self) -> u64 {
        self.order.training_len()
    }

    /// Bytes that it takes in memory.
    pub fn held_bytes(&self) -> u64 {
        size_of_val(&self.features[..]) as u64 + size_of_val(&self.classes[..]) as u64
    }

    /// A digest of all rows, to notice on resuming that the data changed.
    pub fn digest(&self) -> String {
        let mut digest = blake3::Hasher::new();
        for feature in &self.features {
            digest.update(&feature.to_le_bytes());
        }
        for class in &self.classes {
            digest.update(&class.to_le_bytes());
        }
        for name in &self.names {
            digest.update(&(name.len() as u64).to_le_bytes());
            digest.update(name.as_bytes());
        }
        digest.finalize().to_hex().to_string()
    }
}

impl Source for Table {
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

impl Table {
    fn row_field(&self, part: Part, position: u64, input: &str) -> Option<Field<'_>> {
        let row = self.order.row(part, position)?;
        let class = self.classes.get(row..=row)?;
        match input {
            "features" => {
                let at = row * self.columns..(row + 1) * self.columns;
                Some(Field::Reals(&self.features[at]))
            }
            "targets" => Some(Field::Indices(class)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: usize, validation_fraction: f64) -> Table {
        let features = (0..rows * 2).map(|index| index as f32).collect();
        let classes = (0..rows as u32).collect();
        Table::from_rows(features, classes, validation_fraction, 5).expect("rows")
    }

    #[test]
    fn an_epoch_visits_every_training_row_once_and_features_stay_with_their_class() {
        let table = table(10, 0.25);
        assert_eq!(table.validation_len(), 3);
        for epoch in 0..3 {
            let mut seen = vec![];
            for position in epoch * 7..(epoch + 1) * 7 {
                let Some(Field::Indices(&[class])) =
                    table.row_field(Part::Training, position, "targets")
                else {
                    panic!("a class for every position")
                };
                let first = class as f32 * 2.0;
                assert_eq!(
                    table.row_field(Part::Training, position, "features"),
                    Some(Field::Reals(&[first, first + 1.0]))
                );
                seen.push(class);
            }
            seen.sort();
            let mut all = [seen, validated(&table)].concat();
            all.sort();
            assert_eq!(all, (0..10).collect::<Vec<_>>());
        }
    }

    /// The classes, which are also the numbers of rows, of the rows to validate on.
    fn validated(table: &Table) -> Vec<u32> {
        let class = |position| match table.row_field(Part::Validation, position, "targets") {
            Some(Field::Indices(&[class])) => class,
            other => panic!("{other:?} is no class"),
        };
        (0..table.validation_len()).map(class).collect()
    }

    #[test]
    fn rows_to_validate_on_come_from_all_of_a_sorted_table_whatever_the_seed() {
        let table = |seed| {
            let rows = Table::from_rows(vec![0.0; 300], (0..300).collect(), 0.2, seed);
            rows.expect("rows")
        };
        let found = validated(&table(1));
        assert_eq!(found.len(), 60);
        assert_eq!(found, validated(&table(2)));
        // Of each third there are 20 where all are alike; 10 or fewer, or 30 or more, are rarer than 1 in 100.
        for third in 0..3 {
            let of_third = found.iter().filter(|&&class| class / 100 == third).count();
            assert!((11..30).contains(&of_third), "{of_third}");
        }
    }

    #[test]
    fn features_that_fill_no_whole_rows_are_refused() {
        for (features, classes) in [(3, 2), (0, 2), (2, 0), (0, 0)] {
            let made = Table::from_rows(vec![0.0; features], vec![0; classes], 0.0, 5);
            let message = made.expect_err("no rows").to_string();
            let rule =
                format!("{features} features and {classes} classes are no rows of equal length");
            assert!(message.contains(&rule), "{message}");
        }
    }

    #[test]
    fn files_with_and_without_a_header_are_read_and_bad_rows_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table.csv");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("a temporary file");
            Table::open(&path, 0.0, 0)
        };
        let plain = read("1,2,0\n3,4,1\n").expect("a table");
        let headed = read("a,b,class\n1, 2, 0\n3, 4, 1\n").expect("a table");
        assert_eq!(plain, headed);
        assert_eq!((plain.columns(), plain.classes()), (2, 2));
        let few = read("a,b,class\n\n1,2,0\n3,4,6\n5,6,6\n").expect("a table");
        assert!(few.require_classes(&path, "mlp:classes=7", 7).is_ok());
        let message = few.require_classes(&path, "mlp:classes=6", 6).expect_err("7 classes");
        let said = ".csv:4: class 6, but mlp:classes=6 tells 6 classes apart, counted from 0; give the model 7";
        assert!(message.to_string().contains(said), "{message}");
        let named = read("a,b,class\n1,2,red\n3,4,blue\n5,6,red\n").expect("a table");
        assert_eq!(named.class_names(), ["blue", "red"]);
        assert_eq!((&named.classes[..], named.classes()), (&[1, 0, 1][..], 2));
        let message = named.require_classes(&path, "mlp:classes=1", 1).expect_err("2 names");
        assert!(message.to_string().contains("there are 2 names of classes, but mlp:classes=1"));
        let other = read("1,2,red\n3,4,black\n5,6,red\n").expect("a table");
        assert_eq!(other.classes, named.classes);
        assert_ne!(other.digest(), named.digest(), "other names are other data");
        for (text, part) in [
            ("1,2,0\n3,x,1\n", ".csv:2: \"x\" is no finite number"),
            ("1,2,0\n3,1\n", ".csv:2: 2 columns, but rows before it have 3"),
            ("a,b,c\n1,2,0\n\n3,1\n", ".csv:4: 2 columns"),
            ("a;b\n", ".csv:1: it has no number"),
            (
                "1;2;0\n3;4;1\n",
                ".csv:2: a row is features and then a class, with commas between them, and not `;`",
            ),
            ("1\t2\n", "with commas between them, and not tabs"),
            (
                "1,2,0\n1,2,red\n",
                ".csv:2: \"red\" is no class: the last of a row is a whole number",
            ),
            ("1,2,red\n1,2,0\n", ".csv:2: \"0\" is no name of a class, as rows before it have"),
            ("1,2,red\n1,2,\n", ".csv:2: \"\" is no name of a class"),
            ("1,2,\n", ".csv:1: \"\" is no class"),
            ("", "there are no rows"),
            (
                "1,2,0.5\n",
                ".csv:1: \"0.5\" is no class: the last of a row is a whole number from 0",
            ),
            ("1,2,16777216\n", ".csv:1: \"16777216\" is no class"),
            ("1,2,-1\n", ".csv:1: \"-1\" is no class"),
            ("0\n", ".csv:1: a row is features and then a class"),
            ("1,nan,0\n", ".csv:1: \"nan\" is no finite number"),
            ("\n\n", "there are no rows"),
        ] {
            let message = read(text).expect_err("a bad table").to_string();
            assert!(message.contains(part), "{message} does not say {part}");
        }
    }
}
