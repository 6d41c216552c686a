//! Results for people and programs: terminal, page, files.

pub mod files;
pub mod history;
pub mod html;
pub mod over_time;
pub mod summary;
pub mod svg;
pub mod terminal;
