//! What holds of every operator of every graph.

use shardloom_graph::gradient::{self, Operand};
use shardloom_graph::{Extents, Graph, ModelSpec, OpKind, Role, Split};

fn graphs() -> Vec<Graph> {
    let own = include_str!("../../../../examples/models/own-network.toml");
    let lines = [
        "gpt:layers=2,hidden=12,heads=3,seq=5,vocab=7,dropout=0.1",
        "gpt:layers=2,hidden=12,heads=3,seq=5,vocab=7,tied=true",
        "llama:layers=2,hidden=12,heads=6,kv_heads=3,head_dim=4,ffn=11,seq=5,vocab=7",
        "llama:layers=1,hidden=12,heads=3,ffn=11,seq=5,vocab=7,tied=true",
        "llama:layers=2,hidden=12,heads=3,ffn=11,seq=5,vocab=7,windows=2-0,window_rope_theta=10,\
         attention_scalar=7,attention_cap=2,logit_cap=3,post_norms=true",
        "gpt:layers=2,hidden=12,heads=3,seq=5,vocab=7,dropout=0.1,attention_dropout=0,rotary=2,parallel=true,\
         head_bias=true",
        "mlp:inputs=5,hidden=7,layers=2,classes=3",
        "u-transformer:layers=5,hidden=12,heads=3,seq=5,vocab=7,dropout=0.1",
        "u-transformer:layers=4,hidden=12,heads=3,seq=5,vocab=7,tied=true",
        "lstm:layers=2,hidden=6,embed=6,seq=5,vocab=7,dropout=0.1,tied=true",
        "lstm:layers=1,hidden=6,embed=5,seq=5,vocab=7,projection=3",
        "lstm:layers=1,hidden=6,embed=6,seq=5,vocab=7,tied=true,sampled_softmax=3",
        "dlrm:dense=3,rows=2x7-5,embed=4,bottom=6,top=8-5",
        "dlrm:dense=3,rows=7,embed=4,bottom=,top=,diagonal=true",
    ];
    let mut specs: Vec<ModelSpec> =
        lines.iter().map(|line| ModelSpec::parse(line).unwrap()).collect();
    specs.push(ModelSpec::from_toml(own, "own-network.toml").unwrap());
    let graphs: Vec<Graph> = specs.iter().map(|spec| spec.graph().unwrap()).collect();
    let fused =
        graphs.iter().filter(|it| it.attention().is_some()).map(Graph::with_fused_attention);
    fused.chain(graphs.iter().cloned()).collect()
}

#[test]
fn every_operand_that_a_gradient_operator_reads_or_produces_exists() {
    for graph in graphs() {
        for (id, op) in graph.ops() {
            let rule = gradient::rule(&graph, id);
            for gradient in [&rule.input, &rule.weight].into_iter().flatten() {
                assert!(!gradient.produces.is_empty(), "{}", op.name);
                assert!(gradient.produces.iter().all(|&index| index < op.inputs.len()));
                for &read in &gradient.reads {
                    let exists = match read {
                        Operand::Input(index) => index < op.inputs.len(),
                        Operand::Output(index) => index < op.outputs.len(),
                        Operand::OutputGradient => true,
                        Operand::InputGradient(index) => {
                            let produces = &rule.input.as_ref().unwrap().produces;
                            produces.contains(&index)
                        }
                    };
                    assert!(exists, "{} of {}: {read:?}", op.name, graph.name());
                }
            }
        }
    }
}

/// The first two phases of the cross-entropy produce none: the last gives the gradient of the whole.
#[test]
fn every_differentiable_input_gets_its_gradient_exactly_once_and_no_other_gets_one() {
    for graph in graphs() {
        for (id, op) in graph.ops() {
            let rule = gradient::rule(&graph, id);
            let produced = |gradient: &Option<gradient::GradientOp>| {
                gradient.iter().flat_map(|each| each.produces.clone()).collect::<Vec<_>>()
            };
            let mut all = [produced(&rule.input), produced(&rule.weight), rule.passes].concat();
            all.sort();
            let early = matches!(op.kind, OpKind::LogitMax { .. } | OpKind::LogitSum { .. });
            let expected: Vec<usize> = (0..op.inputs.len())
                .filter(|&index| !early && graph.value(op.inputs[index]).differentiable())
                .collect();
            assert_eq!(all, expected, "{} of {}", op.name, graph.name());
        }
    }
}

#[test]
fn gradients_of_parameters_come_from_the_weight_pass_and_of_activations_from_the_others() {
    for graph in graphs() {
        for (id, op) in graph.ops() {
            let rule = gradient::rule(&graph, id);
            let is_parameter = |&index: &usize| graph.value(op.inputs[index]).parameter().is_some();
            if let Some(gradient) = rule.weight {
                assert!(gradient.produces.iter().all(is_parameter), "{}", op.name);
            }
            let others = rule.input.into_iter().flat_map(|each| each.produces).chain(rule.passes);
            assert!(!others.into_iter().any(|index| is_parameter(&index)), "{}", op.name);
        }
    }
}

#[test]
fn a_gradient_that_is_passed_on_has_the_axes_of_the_output() {
    for graph in graphs() {
        for (id, op) in graph.ops() {
            for index in gradient::rule(&graph, id).passes {
                let input = graph.value(op.inputs[index]);
                assert_eq!(input.axes, graph.value(op.outputs[0]).axes, "{}", op.name);
            }
        }
    }
}

#[test]
fn every_axis_runs_with_a_loop_of_its_extent() {
    for graph in graphs() {
        let extents = Extents::global(&graph, 3);
        for (_, op) in graph.ops() {
            let signature = &op.signature;
            let operands = op.inputs.iter().zip(&signature.inputs);
            let results = op.outputs.iter().zip(&signature.outputs);
            assert_eq!(op.inputs.len(), signature.inputs.len());
            assert_eq!(op.outputs.len(), signature.outputs.len());
            for (&value, loops) in operands.chain(results) {
                let axes = &graph.value(value).axes;
                assert_eq!(axes.len(), loops.len(), "{}", op.name);
                for (&axis, &index) in axes.iter().zip(loops) {
                    let along = signature.loops[index].dim;
                    assert_eq!(extents.get(axis), extents.get(along), "{}", op.name);
                }
            }
        }
    }
}

#[test]
fn a_parallel_loop_runs_along_an_axis_of_every_activation_that_the_operator_produces() {
    for graph in graphs() {
        for (_, op) in graph.ops() {
            for (index, each) in op.signature.loops.iter().enumerate() {
                for (&output, axes) in op.outputs.iter().zip(&op.signature.outputs) {
                    let activation = graph.value(output).role == Role::Activation;
                    if each.split == Split::Parallel && activation {
                        assert!(axes.contains(&index), "{} of {}", op.name, graph.name());
                    }
                }
            }
        }
    }
}

#[test]
fn every_operator_follows_those_it_reads_from_and_knows_its_readers() {
    for graph in graphs() {
        for (id, op) in graph.ops() {
            for &input in &op.inputs {
                let value = graph.value(input);
                assert!(value.producer.is_none_or(|producer| producer < id), "{}", op.name);
                assert_eq!(value.consumers.iter().filter(|&&each| each == id).count(), 1);
            }
            assert!(graph.blocks()[op.block.index()].ops.contains(&id));
        }
    }
}

#[test]
fn operators_that_depend_on_a_position_or_an_index_say_which_loop_it_runs_along() {
    for graph in graphs() {
        let name = |op: &shardloom_graph::Op, each: Option<usize>| {
            each.map(|each| graph.dim(op.signature.loops[each].dim).name.clone())
        };
        for (_, op) in graph.ops() {
            let found = (name(op, op.position_loop()), name(op, op.index_loop()));
            let (seq, vocab) = (Some("seq".to_owned()), Some("vocab".to_owned()));
            let expected = match op.kind {
                OpKind::Rotary { .. }
                | OpKind::AttentionProbs { .. }
                | OpKind::AttentionContext { .. }
                | OpKind::FusedAttention { .. } => (seq, None),
                // Each categorical feature of a recommendation model has a table of its own.
                OpKind::Embed if graph.name() == "dlrm" => {
                    (None, Some(op.name.replace("embedding", "rows")))
                }
                OpKind::Embed
                | OpKind::LogitMax { .. }
                | OpKind::LogitSum { .. }
                | OpKind::CrossEntropy { .. } => (None, vocab),
                _ => (None, None),
            };
            assert_eq!(found, expected, "{} of {}", op.name, graph.name());
        }
    }
}
