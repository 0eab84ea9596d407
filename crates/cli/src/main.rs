//! The command line of Shardloom.

mod command;
mod failure;
mod interrupt;
mod number;
mod other_names;
mod output_file;
mod output_folder;
mod snippet;
mod table;
mod terminal;

use std::env;
use std::error::Error as _;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};
use mimalloc::MiMalloc;

use command::{
    Compare, Completions, Demo, Explain, Export, Generate, Import, Launch, Manual, Methods, Plan,
    Predict, Profile, Program, Schedule, Simulate, Train, Validate, Vocabulary,
};
use failure::{Failure, shortened};
use other_names::with_own_name;
use terminal::Terminal;

/// Lowering and searches make and drop many small lists, of which the C library's allocator takes up to half of the
/// time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Find the fastest way to train a neural network on some machines, and train it that way
#[derive(Debug, Parser)]
#[command(name = "shardloom", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// Print results as JSON, one object per line, and errors as JSON on standard error
    #[arg(long, global = true, display_order = 900)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(Box<Plan>),
    Explain(Explain),
    Simulate(Box<Simulate>),
    Program(Box<Program>),
    Train(Box<Train>),
    Launch(Launch),
    Vocabulary(Vocabulary),
    Generate(Generate),
    Predict(Predict),
    Export(Export),
    Import(Import),
    Schedule(Schedule),
    Compare(Box<Compare>),
    Methods(Methods),
    Profile(Profile),
    Validate(Validate),
    Demo(Demo),
    Completions(Completions),
    Manual(Manual),
}

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    let terminal = Terminal::new(arguments.json);
    #[cfg(unix)]
    if let Err(failure) = interrupt::report_file_size_limits() {
        return failure.report(arguments.json);
    }
    let outcome = match arguments.command {
        Command::Plan(plan) => plan.run(terminal),
        Command::Explain(explain) => explain.run(terminal),
        Command::Simulate(simulate) => simulate.run(terminal),
        Command::Program(program) => program.run(terminal),
        Command::Train(train) => train.run(terminal),
        Command::Launch(launch) => launch.run(terminal),
        Command::Vocabulary(vocabulary) => vocabulary.run(terminal),
        Command::Generate(generate) => generate.run(terminal),
        Command::Predict(predict) => predict.run(terminal),
        Command::Export(export) => export.run(terminal),
        Command::Import(import) => import.run(terminal),
        Command::Schedule(schedule) => schedule.run(terminal),
        Command::Compare(compare) => compare.run(terminal),
        Command::Methods(methods) => methods.run(terminal),
        Command::Profile(profile) => profile.run(terminal),
        Command::Validate(validate) => validate.run(terminal),
        Command::Demo(demo) => demo.run(terminal),
        Command::Completions(completions) => completions.run(Arguments::command(), terminal),
        Command::Manual(manual) => manual.run(Arguments::command(), terminal),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(arguments.json),
    }
}

/// Parses the command line. A negative number is a value, refused by its option in words that say what
/// would be right, and not an option that does not exist.
fn parse() -> Result<Arguments, clap::Error> {
    let signed = |argument: Arg| match argument.get_action().takes_values() {
        true if !argument.is_positional() => argument.allow_negative_numbers(true),
        _ => argument,
    };
    let mut command = Arguments::command().mut_subcommands(|command| command.mut_args(signed));
    let matches = command.try_get_matches_from_mut(env::args_os()).map_err(|error| {
        let given = env::args_os().find_map(|word| command.find_subcommand(word).cloned());
        with_own_name(with_suggestion(error), &mut given.unwrap_or_else(|| command.clone()))
    })?;
    Arguments::from_arg_matches(&matches).map_err(with_suggestion)
}

/// An error about a value with the one that was probably meant, of those that the error tells.
fn with_suggestion(mut error: clap::Error) -> clap::Error {
    let told = error.source().map(ToString::to_string).unwrap_or_default();
    let words = told.split(|c: char| !(c.is_alphanumeric() || "-_:".contains(c)));
    // What is meant as a number is like many short words.
    let is_name = |word: &str| word.len() > 2 && word.contains(char::is_alphabetic);
    if let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidValue)
        && is_name(given)
        && let Some(near) = shardloom::nearest(given, words.filter(|it| is_name(it) && it != given))
    {
        let near = ContextValue::String(near.to_owned());
        error.insert(ContextKind::SuggestedValue, near);
    }
    if let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidValue) {
        let given = ContextValue::String(shortened(given));
        error.insert(ContextKind::InvalidValue, given);
    }
    error
}

/// Help and versions are asked for; all else is an error.
fn refuse(error: &clap::Error) -> ExitCode {
    let json = env::args_os().any(|argument| argument == "--json");
    if json && error.use_stderr() {
        return Failure::arguments(error).report(json);
    }
    match error.print() {
        // Where an error cannot be printed, there is nobody to tell.
        Err(unprinted) if !error.use_stderr() => Failure::from(unprinted).report(json),
        _ => ExitCode::from(error.exit_code() as u8),
    }
}
