//! One row of a CSV file: cells between commas, and quotation marks around cells that contain some.

/// The cells of a row. Keeps its memory from row to row.
#[derive(Debug, Default)]
pub(super) struct Cells {
    text: String,
    ends: Vec<usize>,
}

impl Cells {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.text.get(start..end)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    fn end_cell(&mut self) {
        self.ends.push(self.text.len());
    }
}

/// Splits a row into `cells`.
pub(super) fn split(row: &str, cells: &mut Cells) -> Result<(), &'static str> {
    cells.text.clear();
    cells.ends.clear();
    let mut is_quoted = false;
    let mut characters = row.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '"' if is_quoted && characters.peek() == Some(&'"') => {
                cells.text.push('"');
                characters.next();
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.end_cell(),
            c => cells.text.push(c),
        }
    }
    cells.end_cell();
    if is_quoted { Err("a quotation mark is not closed: a cell must be on one line") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_split_at_commas_outside_of_quotation_marks() {
        let mut cells = Cells::default();
        for (row, expected) in [
            ("a,b", vec!["a", "b"]),
            ("a,,c,", vec!["a", "", "c", ""]),
            (r#""a,b","say ""x""",3"#, vec!["a,b", r#"say "x""#, "3"]),
            ("", vec![""]),
        ] {
            split(row, &mut cells).unwrap();
            assert_eq!(cells.iter().collect::<Vec<_>>(), expected, "{row}");
        }
        split("\"a,b", &mut cells).unwrap_err();
    }
}
