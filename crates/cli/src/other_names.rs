//! Options of other programs, and what they are called here.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Names that people know from launchers and training scripts, with the options that say that here, the best first.
const NAMES: [(&[&str], &[&str]); 13] = [
    (&["--lr"], &["--learning-rate"]),
    (
        &["--batch-size", "--batch", "--global-batch-size", "--train-batch-size"],
        &["--global-batch"],
    ),
    (
        &[
            "--micro-batch-size",
            "--per-device-train-batch-size",
            "--train-micro-batch-size-per-gpu",
            "--gradient-accumulation-steps",
            "--num-microbatches",
            "--micro-batches",
        ],
        &["--micro-batch", "--microbatches"],
    ),
    (
        &[
            "--gpus",
            "--num-gpus",
            "--nodes",
            "--num-nodes",
            "--nnodes",
            "--nproc-per-node",
            "--world-size",
            "--devices",
            "--hardware",
        ],
        &["--ranks", "--cluster"],
    ),
    (&["--tensor-model-parallel-size", "--tensor-parallel-size"], &["--tp"]),
    (&["--pipeline-model-parallel-size", "--pipeline-parallel-size", "--stages"], &["--pp"]),
    (&["--data-parallel-size"], &["--dp"]),
    (&["--context-parallel-size"], &["--cp"]),
    (&["--seq-length", "--seq-len", "--sequence-length", "--max-seq-len", "--context"], &["--seq"]),
    (&["--train-iters", "--max-steps", "--iterations", "--num-steps"], &["--steps"]),
    (&["--clip-grad", "--max-grad-norm", "--gradient-clipping"], &["--clip-norm"]),
    (&["--recompute-granularity", "--activation-checkpointing"], &["--recompute"]),
    (&["--dtype", "--bf16", "--fp16"], &["--precision"]),
];

/// An error about an option that `command` does not have with the one that was probably meant: what another program
/// calls so, or one that is spelt much the same. How the command is used is said as for any option.
pub fn with_own_name(mut error: clap::Error, command: &mut Command) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let given = given.split('=').next().unwrap_or_default().replace('_', "-");
    let options: Vec<String> = command
        .get_arguments()
        .filter_map(clap::Arg::get_long)
        .map(|long| format!("--{long}"))
        .collect();
    let known = NAMES.iter().find(|(names, _)| names.contains(&given.as_str()));
    let own = known.and_then(|(_, own)| own.iter().find(|own| options.iter().any(|it| it == *own)));
    let near = || shardloom::nearest(&given, options.iter().map(String::as_str));
    // Whatever is wrong with a word that is none of an option's, there is a hint already.
    let is_option = given.starts_with("--") && given.len() > 2;
    match own.copied().or_else(near) {
        Some(own) => {
            error.remove(ContextKind::Suggested);
            error.insert(ContextKind::SuggestedArg, ContextValue::String(own.to_owned()));
        }
        None if is_option => {
            error.remove(ContextKind::SuggestedArg);
        }
        None => {}
    }
    error.insert(ContextKind::Usage, ContextValue::StyledStr(command.render_usage()));
    error
}
