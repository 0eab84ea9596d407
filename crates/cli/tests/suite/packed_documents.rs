//! Attention within documents, where samples are packed of several.

use serde_json::Value;

use crate::invocation::Place;

const MODEL: &str = "gpt:layers=2,hidden=16,heads=2,seq=16,vocab=24";

/// A place with lines of five words, and the tokenizer by which each line is a document.
fn place() -> Place {
    let place = Place::new();
    let lines = (0..200_u32).map(|line| {
        let word = |at: u32| format!("w{}", (line * line + 3 * at) % 19);
        (0..5).map(word).collect::<Vec<_>>().join(" ") + "\n"
    });
    place.write("text.txt", lines.collect::<String>());
    place.run("vocabulary --data text.txt --size 24 -o words.json").succeeds();
    place
}

fn losses(place: &Place, options: &str) -> Vec<f64> {
    let run = format!(
        "train {MODEL} --data text.txt --tokenizer words.json --steps 3 --global-batch 8 {options} --json"
    );
    let objects = place.run(&run).succeeds().objects();
    objects.iter().filter_map(|it| it.get("loss").and_then(Value::as_f64)).collect()
}

#[test]
fn training_within_documents_is_that_of_the_plan_whatever_the_split() {
    let place = place();
    let expected = losses(&place, "--mask-documents");
    let whole = losses(&place, "");
    assert_eq!((expected.len(), whole.len()), (3, 3));
    let apart = |one: &[f64], other: &[f64]| {
        one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
    };
    assert!(apart(&expected, &whole) > 1e-4, "{expected:?} and {whole:?}");
    for options in ["--pp 2", "--cp 2 --attention fused", "--dp 2 --zero 3"] {
        let found = losses(&place, &format!("--mask-documents {options}"));
        assert!(apart(&found, &expected) < 1e-5, "{options}: {found:?}, {expected:?}");
    }
    let found = format!(
        "plan {MODEL} --cluster a100-40g:1x2 --global-batch 8 --mask-documents -o plan.toml"
    );
    let text = place.run(&found).succeeds().stdout;
    assert!(text.contains("within documents"), "{text}");
    let plan = std::fs::read_to_string(place.path("plan.toml")).expect("the plan");
    assert!(plan.contains("mask_documents = true"), "{plan}");
}

#[test]
fn documents_that_cannot_be_kept_apart_are_refused() {
    let place = place();
    let train = |model: &str, tokenizer: &str| {
        place.run(&format!(
            "train {model} --data text.txt --tokenizer {tokenizer} --steps 1 --mask-documents --json"
        ))
    };
    let bytes = "gpt:layers=1,hidden=16,heads=2,seq=16,vocab=256";
    train(bytes, "bytes").refuses("data", "the tokenizer bytes has no token that ends one");
    let recurrent = "lstm:layers=1,hidden=16,embed=8,seq=8,vocab=24";
    train(recurrent, "words.json").refuses("plan", "--mask-documents: documents are masked");
    let of_mlp = "mlp:inputs=8,hidden=8,layers=2,classes=4 --cluster a100-40g:1x2";
    for plan in [
        format!("plan {recurrent} --cluster a100-40g:1x2 --global-batch 8"),
        format!("plan {of_mlp} --global-batch 8 --method data-parallel"),
        format!("compare {of_mlp} --methods data-parallel"),
    ] {
        let run = format!("{plan} --mask-documents --json");
        place
            .run(&run)
            .refuses("search", "documents are masked in models whose attention is causal");
    }
    let plan = "plan gpt-2 --cluster a100-40g:1x2 --global-batch 8 --mask-documents --for megatron";
    let outcome = place.run(plan);
    outcome.check(outcome.status == Some(2), "it is not refused");
    outcome.check(outcome.stderr.contains("'--for <PROJECT>'"), "it does not name the option");
}
