//! The words that rows of methods are made of: a row with another one does not compile.

macro_rules! need {
    (open) => {
        Need::Open
    };
    (login) => {
        Need::Login
    };
    (root) => {
        Need::Root
    };
    (judged) => {
        Need::Judged
    };
}

/// A stream is judged by its service while it goes on, unless its need says enough at its start.
macro_rules! need_of_stream {
    (judged) => {
        Need::Open
    };
    ($other:ident) => {
        need!($other)
    };
}

macro_rules! is_endless {
    (endlessly) => {
        true
    };
    ($other:ident) => {
        false
    };
}

/// The `grpc_type` of a method with a stream of replies, by how many requests it takes.
macro_rules! kind_of_stream {
    (one) => {
        "server_stream"
    };
    (many) => {
        "bidi_stream"
    };
}

/// The first of several paths.
macro_rules! first {
    ($first:literal $(, $more:literal)*) => {
        $first
    };
}

/// Takes the request message, if there is only one.
macro_rules! take_request {
    (one, $requests:ident) => {
        only(&mut *$requests).await?
    };
    (many, $requests:ident) => {
        $requests
    };
}

macro_rules! is_watch {
    (watch) => {
        true
    };
    (reply) => {
        false
    };
}

pub(super) use {first, is_endless, is_watch, kind_of_stream, need, need_of_stream, take_request};
