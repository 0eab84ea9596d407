//! Which layers of a model are on which stage, as the software of a source cuts them.

use crate::{Refusal, Shape};

/// How blocks become stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As many layers on every stage, as Megatron-LM has it (Narayanan et al. 2021, section 2.2). The first
    /// stage holds the embedding as well, and the last the head.
    EvenLayers,
    /// nanotron's rule as recalled, not read again: a block goes to the first stage whose share of the
    /// arithmetic of all blocks was not exceeded before it. The loss is a block of its own behind the head.
    ByArithmetic,
}

impl Cut {
    /// The first block of each of `stages` stages, then the number of blocks: the embedding, the layers, and
    /// the head with the loss.
    ///
    /// # Errors
    /// If a stage has no block of its own.
    pub fn cuts(self, shape: &Shape, stages: usize) -> Result<Vec<usize>, Refusal> {
        match self {
            Cut::EvenLayers => even(shape.layers, stages),
            Cut::ByArithmetic => by_arithmetic(shape, stages),
        }
    }
}

fn even(layers: usize, stages: usize) -> Result<Vec<usize>, Refusal> {
    if stages == 0 || stages > layers || !layers.is_multiple_of(stages) {
        return Err(Refusal::Cut(format!("{layers} layers are not the same on {stages} stages")));
    }
    let each = layers / stages;
    let mut cuts = vec![0];
    cuts.extend((1..stages).map(|stage| 1 + stage * each));
    cuts.push(layers + 2);
    Ok(cuts)
}

fn by_arithmetic(shape: &Shape, stages: usize) -> Result<Vec<usize>, Refusal> {
    let [hidden, ffn, vocab, layers] =
        [shape.hidden, shape.ffn, shape.vocab, shape.layers].map(|it| it as f64);
    let layer = 4.0 * hidden * hidden + 3.0 * ffn * hidden;
    let head = vocab * hidden;
    let costs = (0..shape.layers + 3).map(|block| match block {
        0 => 0.0,
        block if block <= shape.layers => layer,
        block if block == shape.layers + 1 => head,
        _ => 0.0,
    });
    let total = layers * layer + head;
    let (mut stage, mut sum, mut stage_of) = (0, 0.0, vec![]);
    for cost in costs {
        stage_of.push(stage);
        sum += cost;
        let share = total * (stage + 1) as f64 / stages as f64;
        if stage + 1 < stages && sum > share {
            stage += 1;
        }
    }
    if let [.., head, loss] = stage_of[..]
        && head != loss
    {
        return Err(Refusal::Cut(format!("stage {loss} holds the loss only")));
    }
    if let Some(empty) = (0..stages).find(|stage| !stage_of.contains(stage)) {
        return Err(Refusal::Cut(format!("stage {empty} holds nothing")));
    }
    let mut cuts: Vec<usize> =
        (0..stages).filter_map(|stage| stage_of.iter().position(|it| *it == stage)).collect();
    cuts.push(shape.layers + 2);
    Ok(cuts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Layers;

    #[test]
    fn layers_are_the_same_on_every_stage() {
        assert_eq!(even(8, 4), Ok(vec![0, 3, 5, 7, 10]));
        assert_eq!(even(8, 1), Ok(vec![0, 10]));
        assert!(even(8, 3).is_err());
        assert!(even(2, 4).is_err());
    }

    #[test]
    fn stages_have_their_share_of_the_arithmetic() {
        let small = Shape {
            kind: Layers::Llama,
            layers: 16,
            hidden: 2048,
            heads: 32,
            kv_heads: 32,
            ffn: 8192,
            vocab: 131_072,
            seq: 4096,
            tied: true,
            padded: false,
        };
        // A head of 131,072 x 2048 is four layers: 20 of them in all.
        assert_eq!(by_arithmetic(&small, 1), Ok(vec![0, 18]));
        assert_eq!(by_arithmetic(&small, 2), Ok(vec![0, 12, 18]));
        // Of four stages the last has the head alone; of eight, the loss.
        assert_eq!(by_arithmetic(&small, 4), Ok(vec![0, 7, 12, 17, 18]));
        let loss_only = Refusal::Cut("stage 7 holds the loss only".into());
        assert_eq!(by_arithmetic(&small, 8), Err(loss_only));
    }
}
