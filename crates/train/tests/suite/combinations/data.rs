//! What models of combinations are trained on.

use shardloom_data::{DataError, Field, Part, Source};
use shardloom_graph::{Graph, Op, OpKind};

use super::words::BATCH;
use crate::support::Samples;

/// Sequences of tokens, or features with classes.
pub struct Data {
    tokens: Samples,
    /// Features and class of samples without a sequence, whose tokens are categories.
    classified: Option<Vec<(Vec<f32>, u32)>>,
}

impl Data {
    /// For `graph`: more than any run takes, so that a run that goes on at another sample is told apart.
    /// With `poison` a feature is no number.
    pub fn new(graph: &Graph, poison: bool) -> Data {
        let tokens = Samples::patterned(128, 8, 32);
        let is_binary = |(_, op): (_, &Op)| op.kind == OpKind::SigmoidCrossEntropy;
        let classes = if graph.ops().any(is_binary) { 2 } else { 4 };
        let classify = |row: &Vec<u32>| {
            let features = row.iter().map(|&it| it as f32 / 16.0 - 1.0).collect();
            (features, (row[0] + row[5]) % classes)
        };
        let mut classified: Vec<(Vec<f32>, u32)> = tokens.inputs.iter().map(classify).collect();
        if poison {
            classified[POISONED * BATCH + 3].0[1] = f32::NAN;
        }
        let reads_features = graph.inputs().any(|(_, input)| input.name == "features");
        Data { tokens, classified: reads_features.then_some(classified) }
    }
}

/// The step that has a feature that is no number, where updates with that are left out.
const POISONED: usize = 1;

impl Source for Data {
    fn field<'a>(
        &'a self,
        part: Part,
        position: u64,
        input: &str,
        room: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        let Some(rows) = &self.classified else {
            return self.tokens.field(part, position, input, room);
        };
        let (features, class) = &rows[position as usize % rows.len()];
        Ok(match input {
            "features" => Some(Field::Reals(features)),
            "targets" => Some(Field::Indices(std::slice::from_ref(class))),
            _ => {
                let number =
                    input.strip_prefix("category.").and_then(|it| it.parse::<usize>().ok());
                let row = &self.tokens.inputs[position as usize % rows.len()];
                number.and_then(|at| row.get(at..=at)).map(Field::Indices)
            }
        })
    }

    fn validation_len(&self) -> u64 {
        self.tokens.validation_len()
    }
}
