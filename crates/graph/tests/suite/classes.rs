//! Which models tell classes of samples apart, and what they decide by.

use shardloom_graph::{Graph, GraphBuilder, GraphError, Init, ModelSpec, OpKind};

fn graph(spec: &str) -> Graph {
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model")
}

#[test]
fn a_perceptron_decides_between_its_classes_and_a_recommendation_model_between_two() {
    let mlp = graph("mlp:inputs=4,hidden=8,layers=1,classes=3");
    let classes = mlp.sample_classes().expect("a classifier");
    assert_eq!((classes.count, classes.one_logit), (3, false));
    assert_eq!(mlp.axes_text(&mlp.value(classes.logits).axes), "batch, vocab");
    assert_eq!(mlp.op(classes.decided_at).kind, OpKind::LogitSum { classes: None });
    let dlrm = graph("dlrm:dense=4,rows=20-6,embed=4,bottom=8,top=8");
    let classes = dlrm.sample_classes().expect("a classifier");
    assert_eq!((classes.count, classes.one_logit), (2, true));
    assert_eq!(dlrm.op(classes.decided_at).kind, OpKind::SigmoidCrossEntropy);
    assert_eq!(dlrm.op(classes.decided_at).inputs[0], classes.logits);
}

#[test]
fn language_models_have_no_classes_of_samples_however_short() {
    for spec in [
        "gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16",
        "gpt:layers=1,hidden=8,heads=2,seq=1,vocab=16",
        "lstm:layers=1,hidden=8,embed=8,seq=4,vocab=16",
    ] {
        assert_eq!(graph(spec).sample_classes(), None, "{spec}");
    }
}

/// A network of one's own whose classes are a dimension of another name.
fn own() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("own");
    let seq = net.dim("seq", 2)?;
    let kinds = net.dim("kinds", 5)?;
    let x = net.features("patches", &[seq])?;
    let targets = net.targets("y", &[])?;
    net.block("all");
    let w = net.parameter("w", &[seq, kinds], 1, Init::Normal { std: 0.1 })?;
    let logits = net.contract("logits", x, w, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

#[test]
fn whether_there_are_classes_of_samples_goes_by_the_axes_of_the_targets() {
    let graph = own().expect("a network");
    assert_eq!(graph.sample_classes().map(|it| it.count), Some(5));
}

/// A table is the head's where the head is tied to it, and of an untied model only what comes last is the head's.
#[test]
fn the_trunk_has_the_table_of_a_vocabulary_unless_the_head_is_tied_to_it() {
    for (tied, head) in [(false, "head.weight"), (true, "embedding.token")] {
        let graph = graph(&format!("gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16,tied={tied}"));
        let names = |of: Vec<_>| -> Vec<&str> {
            of.into_iter().map(|id| graph.value(id).name.as_str()).collect()
        };
        let trunk = names(graph.trunk_parameters());
        let all = names(graph.parameters().map(|(id, _)| id).collect());
        let others: Vec<&str> = all.into_iter().filter(|name| !trunk.contains(name)).collect();
        assert_eq!(others, [head], "tied: {tied}");
        let embeddings: Vec<bool> =
            graph.class_parameters().map(|id| graph.is_embedding(id)).collect();
        assert_eq!(embeddings, if tied { vec![false] } else { vec![true, false] });
    }
}

#[test]
fn padding_of_a_vocabulary_is_no_class_and_rows_of_tables() -> Result<(), GraphError> {
    for (line, parameters) in [
        ("gpt:layers=1,hidden=4,heads=1,seq=2,vocab=5,tied=true,head_bias=true", 2),
        ("u-transformer:layers=3,hidden=4,heads=1,seq=2,vocab=5", 2),
        ("llama:layers=1,hidden=4,heads=1,ffn=4,seq=2,vocab=5", 2),
    ] {
        let plain = ModelSpec::parse(line)?;
        let padded = ModelSpec::parse(&format!("{line},padded_vocab=8"))?;
        assert_eq!(padded, plain.with_padding(Some(8))?);
        assert_eq!(padded, plain.with_padding(Some(4))?);
        assert_eq!(plain.network(), padded.with_padding(None)?.network());
        assert_eq!(padded.with_vocab(9)?.network(), plain.with_vocab(9)?.network());
        let graph = padded.graph()?;
        let rows = graph.class_dim().map(|dim| graph.dim(dim).size);
        assert_eq!((rows, graph.class_count()), (Some(8), Some(5)), "{line}");
        assert_eq!(graph.class_parameters().count(), parameters, "{line}");
        let kinds: Vec<OpKind> = graph.ops().map(|(_, op)| op.kind).collect();
        let classes = Some(5);
        for kind in [
            OpKind::LogitMax { classes },
            OpKind::LogitSum { classes },
            OpKind::CrossEntropy { classes },
        ] {
            assert!(kinds.contains(&kind), "{line}: {kind:?}");
        }
        // Where it is as many rows as tokens, there is none.
        let none = ModelSpec::parse(&format!("{line},padded_vocab=5"))?.graph()?;
        assert_eq!(none.class_count(), Some(5));
        assert!(none.ops().any(|(_, op)| op.kind == OpKind::CrossEntropy { classes: None }));
        let few = ModelSpec::parse(&format!("{line},padded_vocab=4")).expect_err("fewer rows");
        assert!(few.to_string().contains("padded_vocab = 4"), "{few}");
        assert!(few.to_string().contains("at least vocab = 5"), "{few}");
    }
    let lstm = ModelSpec::parse("lstm:layers=1,hidden=4,embed=4,vocab=5,seq=2")?;
    assert!(lstm.with_padding(Some(8)).is_err());
    Ok(())
}
