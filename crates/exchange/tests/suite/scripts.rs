//! Scripts that start Megatron-LM, however they say their options.

use shardloom_exchange::{Imported, Project, import};

use crate::from_elsewhere::NOTHING;

/// A script with these lines before the command and these options in it.
fn script(lines: &str, options: &str) -> String {
    format!(
        "#!/bin/bash\n{lines}\ntorchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 12 \
         --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 50257 \
         --global-batch-size 128 --bf16 --tensor-model-parallel-size 2 {options}\n"
    )
}

fn read(lines: &str, options: &str) -> Result<Imported, String> {
    let text = script(lines, options);
    import(Project::Megatron, &text, "run.sh", &NOTHING).map_err(|error| error.to_string())
}

#[test]
fn options_are_the_same_in_words_variables_lists_and_quotes() {
    let plain = read("", "--micro-batch-size 2 --sequence-parallel").expect("a plan");
    for (lines, options) in [
        ("", "--micro-batch-size=2 --sequence-parallel"),
        ("", "\"--micro-batch-size 2\" --sequence-parallel"),
        ("", "\"--micro-batch-size 2 --sequence-parallel\""),
        ("", "'--micro-batch-size' '2' \\\n --sequence-parallel"),
        ("N=2", "--micro-batch-size $N --sequence-parallel"),
        ("N=2", "--micro-batch-size ${N} --sequence-parallel"),
        ("N=\"2\"", "--micro-batch-size \"$N\" --sequence-parallel"),
        ("", "--micro-batch-size ${N:-2} --sequence-parallel"),
        ("N=2", "--micro-batch-size ${N:-4} --sequence-parallel"),
        ("A=2\nB=$A", "--micro-batch-size ${B} --sequence-parallel"),
        ("ALL=\"--micro-batch-size 2 --sequence-parallel\"", "$ALL"),
        ("ALL=(--micro-batch-size 2 --sequence-parallel)", "${ALL[@]}"),
        ("ALL=(\n  --micro-batch-size 2 # of a rank\n  --sequence-parallel\n)", "${ALL[@]}"),
        ("ALL=(\"--micro-batch-size 2\" \"--sequence-parallel\")", "${ALL[@]}"),
    ] {
        let found =
            read(lines, options).unwrap_or_else(|error| panic!("{lines} {options}: {error}"));
        assert_eq!(found.plan.to_toml(), plain.plan.to_toml(), "{lines} {options}");
    }
    // Each of them counts.
    let other = read("", "--micro-batch-size 4 --sequence-parallel").expect("a plan");
    assert_ne!(other.plan.to_toml(), plain.plan.to_toml());
    let other = read("", "--micro-batch-size 2").expect("a plan");
    assert_ne!(other.plan.to_toml(), plain.plan.to_toml());
}

#[test]
fn a_value_with_a_variable_that_nobody_assigns_is_refused_as_it_stands() {
    for value in ["$N", "${N}", "1$N", "1${N}", "${N}0", "1${N}0", "${N}${M}", "$N-$M"] {
        let error = read("M2=4", &format!("--micro-batch-size {value}")).expect_err(value);
        let said = format!("--micro-batch-size = {value}: the variable is not assigned");
        assert!(error.contains(&said), "{value}: {error}");
    }
    // Only where it is read.
    read("", "--micro-batch-size 2 --data-path $DATA/all").expect("the path is not read");
    // What one of two variables stands for is there all the same.
    let error = read("N=1", "--micro-batch-size ${N}${M}").expect_err("the second is not known");
    assert!(error.contains("--micro-batch-size = 1${M}: "), "{error}");
}

#[test]
fn branches_that_cannot_be_told_are_noted_where_they_have_options() {
    let noted = |lines: &str| {
        let found = read(lines, "--micro-batch-size 2 $MORE").expect("a plan");
        found.notes.iter().any(|note| note.contains("which branches the script takes"))
    };
    let branch = |condition: &str, inside: &str| format!("if {condition}; then\n  {inside}\nfi");
    let unknown = "[ \"$FAST\" = 1 ]";
    assert!(noted(&branch(unknown, "MORE=\"--sequence-parallel\"")));
    assert!(noted(&branch(unknown, "MORE=(--sequence-parallel)")));
    assert!(!noted(&branch(unknown, "mkdir -p out")));
    assert!(!noted(&branch("[ 1 = 1 ]", "MORE=\"--sequence-parallel\"")));
    assert!(!noted(&branch("[ 1 = 2 ]", "MORE=\"--sequence-parallel\"")));
    assert!(!noted(&format!("FAST=1\n{}", branch(unknown, "MORE=\"--sequence-parallel\""))));
}

#[test]
fn only_torchtitan_reads_a_table_of_actions() {
    let table = Some(("a.csv", "0F0,0B0\n"));
    for project in Project::ALL {
        let given = shardloom_exchange::Given { table, ..NOTHING };
        let found = import(project, &script("", "--micro-batch-size 2"), "file", &given);
        let error = found.err().map(|it| it.to_string()).unwrap_or_default();
        let is_refused = error.contains(&format!("a.csv: {project} reads no table of actions"));
        assert_eq!(is_refused, project != Project::Torchtitan, "{project}: {error}");
    }
}

/// In each of the shell's ways to write a comparison of texts.
#[test]
fn options_under_a_condition_are_read_where_it_holds_or_nobody_knows() {
    let splits = |condition: &str| {
        let lines = format!("A=x\nif {condition}; then\n  MORE=\"--sequence-parallel\"\nfi");
        let found = read(&lines, "--micro-batch-size 2 $MORE").expect("a plan");
        let is_noted = found.notes.iter().any(|it| it.contains("which branches the script takes"));
        (found.plan.layout.splits("seq", shardloom_plan::Axis::TP), is_noted)
    };
    for (inside, holds) in [
        ("$A = x", Some(true)),
        ("$A = y", Some(false)),
        ("$A != x", Some(false)),
        ("$A != y", Some(true)),
        ("-n $A", Some(true)),
        ("-z $A", Some(false)),
        ("$B = x", None),
        ("$A = $B", None),
        ("-n $B", None),
    ] {
        let ways = [format!("[ {inside} ]"), format!("[[ {inside} ]]"), format!("test {inside}")];
        for condition in ways {
            let expected = (holds != Some(false), holds.is_none());
            assert_eq!(splits(&condition), expected, "{condition}");
        }
    }
}
