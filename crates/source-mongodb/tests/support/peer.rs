//! A scripted MongoDB server.
