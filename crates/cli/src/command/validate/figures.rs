//! What predictions of measurements came to, on the terminal.

use shardloom::cluster::Residuals;
use shardloom::program::quantity::{bytes, counted, percent, seconds, signed_percent};
use shardloom_validate::{
    Coverage, Errors, Exceeding, Figures, FileReport, GroupResiduals, LineReport, OperatorFigures,
    Part,
};

use crate::failure::Failure;
use crate::table::table;
use crate::terminal::Terminal;

/// Says what became of every file.
pub fn print(terminal: Terminal, reports: &[FileReport]) -> Result<(), Failure> {
    for report in reports {
        if let Some(lines) = &report.lines {
            terminal.line(format_args!("{}", report.file))?;
            terminal.text(table(&LINES, &lines.iter().map(line_row).collect::<Vec<_>>()))?;
            terminal.line("")?;
        }
    }
    let named = named(reports);
    let rows = |row: fn(&str, &Figures) -> Vec<String>| -> Vec<Vec<String>> {
        named.iter().map(|(name, figures)| row(name, figures)).collect()
    };
    if !named.is_empty() {
        terminal.text(table(&TIMES, &rows(time_row)))?;
    }
    let remembering: Vec<Vec<String>> = named
        .iter()
        .filter(|(_, figures)| has_memory(figures))
        .map(|(name, figures)| memory_row(name, figures))
        .collect();
    if !remembering.is_empty() {
        terminal.line("")?;
        terminal.text(table(&MEMORY, &remembering))?;
    }
    let operators = operators(reports);
    if !operators.is_empty() {
        if !named.is_empty() {
            terminal.line("")?;
        }
        terminal.text(table(&OPERATORS, &operators))?;
    }
    let has_more =
        |report: &&FileReport| report.operators.is_empty() || !report.refusals.is_empty();
    for report in reports.iter().filter(has_more) {
        terminal.line(format_args!("\n{}", report.file))?;
        if let Some(why) = report.refused {
            terminal.line(format_args!("  nothing to compare: {why}"))?;
            continue;
        }
        if let Some(interval) = report.all.interval {
            terminal.line(format_args!("  {}", coverage(interval)))?;
        }
        for it in &report.all.worst {
            let error = signed_percent(it.error);
            terminal.line(format_args!("  {error} in line {}: {}", it.line, it.what))?;
        }
        for it in &report.refusals {
            let (rows, reason, first) = (it.rows, it.reason, &it.first);
            terminal.line(format_args!("  {rows} not predicted: {reason} (the first: {first})"))?;
        }
        if report.all.rows > 0 {
            let took = seconds(report.prediction_seconds);
            terminal.line(format_args!("  predicted in {took} of one core"))?;
        }
    }
    Ok(())
}

/// Whether there is anything to say of memory.
pub fn has_memory(figures: &Figures) -> bool {
    figures.memory.is_some() || figures.crashed.rows > 0
}

/// The columns of [`time_row`].
pub const TIMES: [&str; 10] = [
    "time of a step",
    "rows",
    "compared",
    "error",
    "bias",
    "median",
    "rank",
    "groups",
    "regret",
    "worst regret",
];

/// The columns of [`memory_row`].
pub const MEMORY: [&str; 6] =
    ["peak memory", "rows", "error", "bias", "crashed: too large", "ran: too large"];

/// The columns of [`operators`].
pub const OPERATORS: [&str; 8] =
    ["operator", "device", "format", "library", "rows", "error", "bias", "rank"];

const LINES: [&str; 6] = ["line", "measured", "predicted", "error", "peak", "what"];

/// What the model of devices says of the operators of every file.
pub fn operators(reports: &[FileReport]) -> Vec<Vec<String>> {
    let row = |it: &OperatorFigures| {
        let OperatorFigures { hardware, kind, errors } = it;
        vec![
            format!("{}.{}", kind.operator, kind.pass),
            hardware.clone(),
            kind.format.clone(),
            kind.library.clone(),
            errors.rows.to_string(),
            percent(errors.mean_absolute),
            signed_percent(errors.bias),
            errors.rank_correlation.map_or("-".into(), |rank| format!("{rank:.3}")),
        ]
    };
    reports.iter().flat_map(|report| report.operators.iter().map(row)).collect()
}

/// Every file, and what is predicted of its parts where it has several.
pub fn named(reports: &[FileReport]) -> Vec<(String, &Figures)> {
    let mut named = vec![];
    let compared = |report: &&FileReport| report.refused.is_none() && report.operators.is_empty();
    for report in reports.iter().filter(compared) {
        let file = report.file.rsplit('/').next().unwrap_or(&report.file);
        named.push((file.to_owned(), &report.all));
        if report.parts.len() > 1 {
            let predicted = |part: &&Part| part.figures.refused < part.figures.rows;
            for part in report.parts.iter().filter(predicted) {
                named.push((format!("  {}, {}", part.source, part.hardware), &part.figures));
            }
        }
    }
    named
}

pub fn time_row(name: &str, figures: &Figures) -> Vec<String> {
    let step = |of: fn(&Errors) -> String| figures.step.as_ref().map_or("-".into(), of);
    let regret = figures.regret.as_ref();
    vec![
        name.to_owned(),
        figures.rows.to_string(),
        step(|it| it.rows.to_string()),
        step(|it| percent(it.mean_absolute)),
        step(|it| signed_percent(it.bias)),
        step(|it| percent(it.median_absolute)),
        step(|it| it.rank_correlation.map_or("-".into(), |rank| format!("{rank:.3}"))),
        regret.map_or("-".into(), |it| it.groups.to_string()),
        regret.map_or("-".into(), |it| percent(it.mean)),
        regret.map_or("-".into(), |it| percent(it.max)),
    ]
}

/// How many measured times lie in the interval.
pub fn coverage(it: Coverage) -> String {
    let share = percent(it.inside as f64 / it.rows as f64);
    let without = match it.without {
        0 => String::new(),
        count => format!(
            "; {} more without one, as the software was not calibrated on such devices and steps",
            counted(count, "row")
        ),
    };
    format!(
        "in the 80% interval: {share} of {} rows, half-width {}{without}",
        it.rows,
        percent(it.half_width)
    )
}

/// What a stack's file says of a group, with where it is from as comments.
pub fn group_toml(it: &GroupResiduals) -> String {
    let GroupResiduals { stack, of, devices, rows, .. } = it;
    let Some([low, high]) = it.quantiles else {
        let least = Residuals::LEAST_ROWS;
        return format!("\n# {stack}, {of}: too few rows, {rows} of at least {least}\n");
    };
    let held_out = it.held_out.map_or("no model can be left out".to_owned(), |it| {
        let share = percent(it.inside as f64 / it.rows as f64);
        format!("with quantiles of other models {share} of {} rows are inside", it.rows)
    });
    let devices: Vec<&String> = devices.iter().collect();
    format!(
        "\n# {stack}: {held_out}\n[[residuals]]\nof = \"{of}\"\ndevices = {devices:?}\nrows = {rows}\nlow = {low:.3}\n\
         high = {high:.3}\n"
    )
}

pub fn memory_row(name: &str, figures: &Figures) -> Vec<String> {
    let memory = |of: fn(&Errors) -> String| figures.memory.as_ref().map_or("-".into(), of);
    let share = |it: Exceeding| match it.rows {
        0 => "-".to_owned(),
        rows => format!("{} of {rows}", it.exceeding),
    };
    vec![
        name.to_owned(),
        memory(|it| it.rows.to_string()),
        memory(|it| percent(it.mean_absolute)),
        memory(|it| signed_percent(it.bias)),
        share(figures.crashed),
        share(figures.ran),
    ]
}

fn line_row(it: &LineReport) -> Vec<String> {
    let time = |value: Option<f64>| value.map_or("-".into(), seconds);
    let size = |value: Option<f64>| value.map_or("-".into(), |value| bytes(value as u64));
    let peaks = match (it.measured_peak_bytes, it.predicted_peak_bytes) {
        (None, None) => "-".to_owned(),
        (measured, predicted) => {
            format!("{} / {}", size(measured), size(predicted.map(|it| it as f64)))
        }
    };
    let mut what = it.what.clone();
    if it.crashed {
        what += "; crashed";
    }
    if it.exceeds == Some(true) {
        what += "; predicted not to fit";
    }
    if let Some(why) = &it.refused {
        what += &format!("; not predicted: {why}");
    }
    vec![
        it.line.to_string(),
        time(it.measured_seconds),
        time(it.predicted_seconds),
        it.error.map_or("-".into(), signed_percent),
        peaks,
        what,
    ]
}
