//! Tables: Markdown that is also good to read in a terminal. The one way in which figures are
//! printed.

use comfy_table::{CellAlignment, Table, presets};

/// A table of plain lines; all columns but the first are figures.
#[must_use]
pub fn plain(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(head.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}
