//! Tables of Markdown.

/// Prints a table; the first column is text and the others are numbers.
pub(crate) fn print(head: &[String], rows: &[Vec<String>]) {
    let line = |cells: &[String]| println!("| {} |", cells.join(" | "));
    line(head);
    let rules = (0..head.len()).map(|at| if at == 0 { "---" } else { "---:" });
    line(&rules.map(String::from).collect::<Vec<_>>());
    rows.iter().for_each(|row| line(row));
    println!();
}

/// A number with so many digits after the point, and thousands kept apart, or a
/// dash.
pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    let Some(value) = value else {
        return "-".into();
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}
