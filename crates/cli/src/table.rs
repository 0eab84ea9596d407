//! Tables on a terminal.

/// Lines of cells in columns of equal width: the first set to the left, the others to the right.
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(heading.get(column).map(|name| name.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (column, (cell, &width)) in cells.zip(&widths).enumerate() {
            match column {
                0 => text += &format!("{cell:<width$}"),
                _ => text += &format!("  {cell:>width$}"),
            }
        }
        text.truncate(text.trim_end().len());
        text + "\n"
    };
    let mut text = line(&mut heading.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["plan", "1.00 ms"], ["longer name", "µ"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let text = "name            time\nplan         1.00 ms\nlonger name        µ\n";
        assert_eq!(table(&["name", "time"], &rows), text);
    }
}
