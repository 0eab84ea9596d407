//! Which layers of a model are on which stage, as the software of a source cuts them.

use crate::{Refusal, Shape};

/// The most layers that are dealt out one by one.
const MOST_LAYERS: usize = 100_000;

/// How blocks become stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As many layers on every stage, as Megatron-LM has it (Narayanan et al. 2021, section 2.2). The first
    /// stage holds the embedding as well, and the last the head.
    EvenLayers,
    /// nanotron's rule (`build_model` in `src/nanotron/models/base.py` at 2411b02): a block goes to the first
    /// stage whose share of the arithmetic of all blocks was not exceeded before it. Where it puts the loss
    /// behind the head, on a stage of its own, measured times are those of pipelines that do not send logits,
    /// so the loss is taken to be on the head's stage, and the last stage's devices to be idle.
    ByArithmetic,
}

impl Cut {
    /// The first block of each of `stages` stages, or of as many as are not idle, then the number of blocks: the
    /// embedding, the layers, and the head with the loss.
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

/// The stage of every block of nanotron's, in its order: the embedding, the layers, the last norm, the head,
/// a cast of the logits, and the loss.
fn stages_of(shape: &Shape, stages: usize) -> Vec<usize> {
    let [hidden, ffn, vocab] =
        [shape.hidden, shape.ffn, shape.vocab].map(|it| u128::from(it as u32));
    let layer = 4 * hidden * hidden + 3 * ffn * hidden;
    let layers = std::iter::repeat_n(layer, shape.layers);
    let costs: Vec<u128> =
        std::iter::once(0).chain(layers).chain([0, vocab * hidden, 0, 0]).collect();
    let total: u128 = costs.iter().sum();
    let (mut stage, mut sum, mut stage_of) = (0, 0, vec![]);
    for cost in costs {
        stage_of.push(stage);
        sum += cost;
        if sum * stages as u128 > total * (stage as u128 + 1) {
            stage += 1;
        }
    }
    stage_of
}

fn by_arithmetic(shape: &Shape, stages: usize) -> Result<Vec<usize>, Refusal> {
    if stages == 0 || shape.layers > MOST_LAYERS {
        let layers = shape.layers;
        return Err(Refusal::Cut(format!("{layers} layers are not cut into {stages} stages")));
    }
    let stage_of = stages_of(shape, stages);
    // The last norm is of the head's block, wherever it is: it costs next to nothing.
    let head = stage_of[shape.layers + 2];
    let mut of_blocks = stage_of[..=shape.layers].to_vec();
    of_blocks.push(head);
    if let Some(empty) = (0..=head).find(|stage| !of_blocks.contains(stage)) {
        return Err(Refusal::Cut(format!("stage {empty} holds nothing")));
    }
    let first = |stage| of_blocks.iter().position(|it| *it == stage);
    let mut cuts: Vec<usize> = (0..=head).filter_map(first).collect();
    cuts.push(of_blocks.len());
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
        // Of four stages the last has the head alone; of eight, nothing.
        assert_eq!(by_arithmetic(&small, 4), Ok(vec![0, 7, 12, 17, 18]));
        assert_eq!(by_arithmetic(&small, 8), Ok(vec![0, 4, 7, 9, 12, 14, 17, 18]));
        // Of sixteen, the head has the thirteenth.
        assert_eq!(by_arithmetic(&small, 16).map(|cuts| cuts.len()), Ok(14));
    }

    /// Where layers cost more than a stage's share, the head comes behind a stage with nothing but the norm.
    #[test]
    fn a_stage_that_has_the_last_norm_alone_is_refused() {
        let few = Shape {
            kind: Layers::Llama,
            layers: 2,
            hidden: 2048,
            heads: 32,
            kv_heads: 32,
            ffn: 8192,
            vocab: 64,
            seq: 4096,
            tied: true,
            padded: false,
        };
        let refusal = Refusal::Cut("stage 2 holds nothing".into());
        assert_eq!(by_arithmetic(&few, 8), Err(refusal));
    }
}
