//! A table of figures, printed and written to the results.

use std::fmt::{self, Write as _};

#[derive(Debug)]
pub struct Table {
    title: &'static str,
    rows: Vec<[String; 4]>,
    notes: Vec<String>,
}

impl Table {
    pub fn new(title: &'static str) -> Self {
        let head = ["what", "measured", "budget", ""].map(str::to_owned);
        Self { title, rows: vec![head], notes: Vec::new() }
    }

    /// A figure without a budget.
    pub fn figure(&mut self, what: impl Into<String>, measured: impl Into<String>) {
        self.rows.push([what.into(), measured.into(), String::new(), String::new()]);
    }

    /// A figure and its maximum.
    pub fn budget(&mut self, what: impl Into<String>, measured: f64, most: f64, unit: &str) {
        let verdict = if measured <= most { "ok" } else { "OVER" };
        let text = |value: f64| format!("{} {unit}", short(value)).trim_end().to_owned();
        self.rows.push([what.into(), text(measured), format!("≤ {}", text(most)), verdict.into()]);
    }

    /// How the figures were measured.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}

/// Three significant digits, or two decimal places.
pub fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths = [width(0), width(1), width(2), width(3)];
        writeln!(out, "## {}\n", self.title)?;
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                write!(line, "| {cell:<width$} ")?;
            }
            writeln!(out, "{line}|")?;
            if index == 0 {
                writeln!(out, "|{}|", widths.map(|width| "-".repeat(width + 2)).join("|"))?;
            }
        }
        for note in &self.notes {
            write!(out, "\n{note}\n")?;
        }
        Ok(())
    }
}

/// A percentile of the figures; `None` if there are none.
pub fn percentile(figures: &[f64], hundredths: usize) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len() * hundredths).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_marks_figures_over_budget() {
        let mut table = Table::new("Size");
        table.budget("large", 12.345, 4.0, "MB");
        table.budget("small", 3.0, 4.0, "MB");
        table.figure("other", "7");
        let text = table.to_string();
        assert!(text.contains("| large | 12.3 MB  | ≤ 4.00 MB | OVER |"), "{text}");
        assert!(text.contains("| small | 3.00 MB  | ≤ 4.00 MB | ok   |"), "{text}");
        assert!(text.contains("| other | 7        |           |      |"), "{text}");
    }

    #[test]
    fn percentiles_are_measured_values() {
        let figures: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        assert_eq!(percentile(&figures, 50), Some(10.0));
        assert_eq!(percentile(&figures, 90), Some(18.0));
        assert_eq!(percentile(&figures, 100), Some(20.0));
        assert_eq!(percentile(&[], 50), None);
    }
}
