//! What is said of files that were written to be looked at.

use crate::failure::Failure;
use crate::output_file::OutputFile;
use crate::terminal::Terminal;

/// Says to people where a page and a trace are, and what opens a trace.
///
/// # Errors
/// If standard output is closed.
pub fn say(
    page: Option<&OutputFile>,
    trace: Option<&OutputFile>,
    terminal: Terminal,
) -> Result<(), Failure> {
    if let Some(page) = page {
        terminal.line(format_args!("Report: {}", page.path().display()))?;
    }
    if let Some(trace) = trace {
        let path = trace.path().display();
        terminal.line(format_args!("Trace: {path} (of Perfetto; open it at ui.perfetto.dev)"))?;
    }
    Ok(())
}
