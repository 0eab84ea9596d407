//! The classes that a trained model gives to rows of a table.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardloom_checkpoint::Refused;
use shardloom_data::{Columns, Rows};
use shardloom_train::{Classification, Classifier};

use crate::class_names::class_names;
use crate::saved::{available_bytes, model_of, open_checkpoint, weights_of};
use crate::training_data::{TableColumns, table_columns};
use crate::{Confusion, Error, Result};

/// What a trained model makes of the rows of a table.
#[derive(Clone, Debug)]
pub struct Classified {
    /// The checkpoint's folder.
    pub checkpoint: PathBuf,
    /// Steps that the model was trained for.
    pub step: u64,
    /// The model, as [`Model::load`](crate::Model::load) reads it.
    pub model: String,
    /// Newer checkpoints that were not used.
    pub refused: Vec<Refused>,
    /// The class of each row.
    pub rows: Vec<Classification>,
    /// The class that the table says each row is of, if it does.
    pub targets: Option<Vec<u32>>,
    /// What each class is called, in order, where the data that the model was trained on named them; else empty.
    pub class_names: Vec<String>,
}

impl Classified {
    /// How often rows of one class were taken for another, if the table says which class they are of.
    pub fn confusion(&self) -> Option<Confusion> {
        let targets = self.targets.as_ref()?;
        Some(Confusion::of(targets.iter().copied().zip(self.rows.iter().map(|row| row.class))))
    }
}

/// Gives each row of a table (comma-separated values: the columns that the model was trained on, with or without
/// the class behind them) its class by the weights in a checkpoint, or in the newest sound one of a folder of
/// checkpoints. They are those that are exported, of replicas with weights of their own the mean; the model is
/// computed in fp32 on one rank, whatever the plan that it was trained under.
///
/// # Errors
/// If there is no sound checkpoint, its model does not tell classes of rows apart, the table cannot be read or has
/// other columns or classes, or the weights lead to logits that are not finite.
pub fn classify(checkpoint: &Path, table: &Path) -> Result<Classified> {
    let (checkpoint, refused) = open_checkpoint(checkpoint)?;
    let model = model_of(&checkpoint)?;
    let graph = model.graph();
    let name = || model.spec().name().to_owned();
    let features = graph.inputs().find(|(_, input)| input.name == "features");
    let (Some((_, features)), Some(classes)) = (features, graph.sample_classes()) else {
        let reason = "it does not read the columns of a table (`features`) to tell one class for each row; \
                      `shardloom generate` goes on with a text as a language model would";
        return Err(Error::NoClasses { model: name(), reason: reason.into() });
    };
    let TableColumns { numbers, categories } = table_columns(&model, features)?;
    let class_names = class_names(&checkpoint)?;
    let (categories, names) = (&categories[..], &class_names[..]);
    let columns = Columns { numbers, categories, classes: classes.count, names };
    let rows = Arc::new(Rows::open(table, columns)?);
    let weights = weights_of(&checkpoint, &model)?;
    let source = Arc::clone(&rows);
    let classified = Classifier::new(graph.clone(), &weights, source, available_bytes())
        .and_then(|mut classifier| classifier.classify())
        .map_err(|error| match error {
            shardloom_train::Error::Classes { reason } => {
                Error::NoClasses { model: name(), reason }
            }
            other => other.into(),
        })?;
    Ok(Classified {
        checkpoint: checkpoint.path().to_path_buf(),
        step: checkpoint.step(),
        model: model.text(),
        refused,
        rows: classified,
        targets: rows.classes().map(<[u32]>::to_vec),
        class_names,
    })
}
