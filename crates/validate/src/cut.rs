//! Which layers of a model are on which stage, as the software of a source cuts them.

use crate::{Refusal, Shape};

/// How blocks become stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As many layers on every stage, as Megatron-LM has it (Narayanan et al. 2021, section 2.2). The first
    /// stage holds the embedding as well, and the last the head.
    EvenLayers,
    /// nanotron's rule (`build_model` in `src/nanotron/models/base.py` at 2411b02): a block goes to the first
    /// stage whose share of the arithmetic of all blocks was not exceeded before it. The loss is a block of
    /// its own behind the head.
    ByArithmetic,
}

/// Which blocks are on which stage: the embedding, the layers, and the head with the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The first block of each stage, then the number of blocks.
    pub cuts: Vec<usize>,
    /// Whether the last stage holds nothing but the loss, which is then a block of its own.
    pub separate_loss: bool,
}

impl Cut {
    /// The blocks of each of `stages` stages.
    ///
    /// # Errors
    /// If a stage has no block of its own.
    pub fn cuts(self, shape: &Shape, stages: usize) -> Result<Blocks, Refusal> {
        match self {
            Cut::EvenLayers => even(shape.layers, stages),
            Cut::ByArithmetic => by_arithmetic(shape, stages),
        }
    }
}

fn even(layers: usize, stages: usize) -> Result<Blocks, Refusal> {
    if stages == 0 || stages > layers || !layers.is_multiple_of(stages) {
        return Err(Refusal::Cut(format!("{layers} layers are not the same on {stages} stages")));
    }
    let each = layers / stages;
    let mut cuts = vec![0];
    cuts.extend((1..stages).map(|stage| 1 + stage * each));
    cuts.push(layers + 2);
    Ok(Blocks { cuts, separate_loss: false })
}

/// The stage of every block of nanotron's, in its order: the embedding, the layers, the last norm, the head,
/// a cast of the logits, and the loss.
fn stages_of(shape: &Shape, stages: usize) -> Vec<usize> {
    let [hidden, ffn, vocab] = [shape.hidden, shape.ffn, shape.vocab].map(|it| it as u128);
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

fn by_arithmetic(shape: &Shape, stages: usize) -> Result<Blocks, Refusal> {
    let stage_of = stages_of(shape, stages);
    let [.., _, head, cast, loss] = stage_of[..] else {
        return Err(Refusal::Cut("there are no stages".into()));
    };
    if cast != loss {
        return Err(Refusal::Cut(format!("stage {cast} holds a cast only")));
    }
    // The last norm is of the head's block, wherever it is: it costs next to nothing.
    let separate_loss = head != loss;
    let mut of_blocks = stage_of[..=shape.layers].to_vec();
    of_blocks.push(head);
    of_blocks.extend(separate_loss.then_some(loss));
    if let Some(empty) = (0..stages).find(|stage| !of_blocks.contains(stage)) {
        return Err(Refusal::Cut(format!("stage {empty} holds nothing")));
    }
    let first = |stage| of_blocks.iter().position(|it| *it == stage);
    let mut cuts: Vec<usize> = (0..stages).filter_map(first).collect();
    cuts.push(of_blocks.len());
    Ok(Blocks { cuts, separate_loss })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Layers;

    fn blocks(cuts: &[usize], separate_loss: bool) -> Result<Blocks, Refusal> {
        Ok(Blocks { cuts: cuts.to_vec(), separate_loss })
    }

    #[test]
    fn layers_are_the_same_on_every_stage() {
        assert_eq!(even(8, 4), blocks(&[0, 3, 5, 7, 10], false));
        assert_eq!(even(8, 1), blocks(&[0, 10], false));
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
        assert_eq!(by_arithmetic(&small, 1), blocks(&[0, 18], false));
        assert_eq!(by_arithmetic(&small, 2), blocks(&[0, 12, 18], false));
        // Of four stages the last has the head alone; of eight, the loss.
        assert_eq!(by_arithmetic(&small, 4), blocks(&[0, 7, 12, 17, 18], false));
        assert_eq!(by_arithmetic(&small, 8), blocks(&[0, 4, 7, 9, 12, 14, 17, 18, 19], true));
        // Of sixteen, the head's is the fourteenth, the cast's the fifteenth.
        assert!(by_arithmetic(&small, 16).is_err());
    }
}
