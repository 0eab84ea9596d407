//! The command line of Shardloom.

mod command;
mod failure;
mod interrupt;
mod output_file;
mod quantity;
mod table;
mod terminal;

use std::env;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use command::{Demo, Explain, Generate, Plan, Profile, Schedule, Simulate, Train};
use failure::Failure;
use terminal::Terminal;

/// Find the fastest way to train a neural network on some machines, and train it that way
#[derive(Debug, Parser)]
#[command(name = "shardloom", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// Print results as JSON, one object per line, and errors as JSON on standard error
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(Plan),
    Explain(Explain),
    Simulate(Simulate),
    Train(Box<Train>),
    Generate(Generate),
    Schedule(Schedule),
    Profile(Profile),
    Demo(Demo),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    let terminal = Terminal::new(arguments.json);
    let outcome = match arguments.command {
        Command::Plan(plan) => plan.run(terminal),
        Command::Explain(explain) => explain.run(terminal),
        Command::Simulate(simulate) => simulate.run(terminal),
        Command::Train(train) => train.run(terminal),
        Command::Generate(generate) => generate.run(terminal),
        Command::Schedule(schedule) => schedule.run(terminal),
        Command::Profile(profile) => profile.run(terminal),
        Command::Demo(demo) => demo.run(terminal),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(arguments.json),
    }
}

/// Help and versions are asked for; all else is an error.
fn refuse(error: &clap::Error) -> ExitCode {
    let json = env::args_os().any(|argument| argument == "--json");
    if json && error.use_stderr() {
        return Failure::arguments(error).report(json);
    }
    // Where even this cannot be printed, there is nobody to tell.
    let _ = error.print();
    ExitCode::from(error.exit_code() as u8)
}
