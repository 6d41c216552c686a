//! What people and programs get to see of results.

pub mod files;
pub mod history;
pub mod html;
pub mod summary;
pub mod svg;
pub mod terminal;
