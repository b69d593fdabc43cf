//! Enumerations of the configuration that have a fixed set of values in the file.

macro_rules! file_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the value as written in the file.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Parses the value as written in the file.
            pub(crate) fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text)
            }
        }
    };
}
pub(super) use file_enum;

file_enum! {
    /// The format of log lines.
    ///
    /// ```
    /// use lazaret_config::LogFormat;
    /// assert_eq!(LogFormat::Json.as_str(), "json");
    /// ```
    LogFormat {
        /// Human-readable text.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

file_enum! {
    /// The minimum level of log lines.
    ///
    /// ```
    /// use lazaret_config::LogLevel;
    /// assert_eq!(LogLevel::Warn.as_str(), "warn");
    /// ```
    LogLevel {
        /// Errors only.
        Error = "error",
        /// Errors and warnings.
        Warn = "warn",
        /// State changes, and all of the above.
        Info = "info",
        /// Details, and all of the above.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

file_enum! {
    /// The full-document mode of a MongoDB change stream.
    FullDocument {
        /// Only the change event itself.
        Default = "default",
        /// The current document, looked up when the change is read.
        UpdateLookup = "update-lookup",
        /// The post-image, if available.
        WhenAvailable = "when-available",
        /// The post-image. It is an error if none is available.
        Required = "required",
    }
}

file_enum! {
    /// The pre-image mode of a MongoDB change stream.
    BeforeChange {
        /// No pre-image.
        Off = "off",
        /// The pre-image, if available.
        WhenAvailable = "when-available",
        /// The pre-image. It is an error if none is available.
        Required = "required",
    }
}

file_enum! {
    /// An operation of a MongoDB change stream.
    OperationType {
        /// A document was inserted.
        Insert = "insert",
        /// Fields of a document were changed.
        Update = "update",
        /// A document was replaced.
        Replace = "replace",
        /// A document was deleted.
        Delete = "delete",
        /// A collection was dropped.
        Drop = "drop",
        /// A collection was renamed.
        Rename = "rename",
        /// A database was dropped.
        DropDatabase = "drop-database",
        /// The stream was invalidated.
        Invalidate = "invalidate",
    }
}

file_enum! {
    /// The start position of a MongoDB change stream.
    StartPosition {
        /// The saved position. At the first start, now.
        Resume = "resume",
        /// Now, at each start.
        Latest = "latest",
        /// The saved position. At the first start, the oldest change in the oplog.
        OplogStart = "oplog-start",
    }
}

file_enum! {
    /// The action when the saved position is no longer in the oplog, or is later than the server's
    /// latest change.
    HistoryLost {
        /// Stop the consumer.
        Fail = "fail",
        /// Continue from now. Changes in between are lost.
        FromNow = "from-now",
        /// Continue from the oldest change in the oplog.
        FromOplogStart = "from-oplog-start",
    }
}

file_enum! {
    /// The action when a MongoDB change stream was invalidated.
    OnInvalidate {
        /// Stop the consumer.
        Stop = "stop",
        /// Continue with the collection or database that is created under the same name.
        StartAfter = "start-after",
    }
}

file_enum! {
    /// How settled rows of an outbox are acknowledged.
    OutboxAck {
        /// Settled rows are deleted.
        Delete = "delete",
        /// Settled rows stay, and the store keeps the position.
        Position = "position",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Kind, sections};

    /// Returns the allowed values of a key, from the table.
    fn values(path: &str, name: &str) -> Vec<&'static str> {
        let sections = sections();
        let (_, section) = sections.iter().find(|(known, _)| known == path).expect("the section exists");
        match &section.key(name).expect("the key exists").kind {
            Kind::Enum(values) | Kind::List { of: Kind::Enum(values), .. } => {
                values.iter().map(|value| value.0).collect()
            }
            _ => panic!("{path}.{name} is not an enum"),
        }
    }

    #[test]
    fn every_enum_has_the_values_of_the_table() {
        let mongodb = "consumers.NAME.source.mongodb";
        let outbox = "consumers.NAME.source.postgres-outbox";
        let table: [(&str, &str, Vec<&str>); 9] = [
            ("telemetry", "log-format", LogFormat::ALL.iter().map(|value| value.as_str()).collect()),
            ("telemetry", "log-level", LogLevel::ALL.iter().map(|value| value.as_str()).collect()),
            (mongodb, "full-document", FullDocument::ALL.iter().map(|value| value.as_str()).collect()),
            (mongodb, "start", StartPosition::ALL.iter().map(|value| value.as_str()).collect()),
            (
                mongodb,
                "full-document-before-change",
                BeforeChange::ALL.iter().map(|value| value.as_str()).collect(),
            ),
            (mongodb, "operation-types", OperationType::ALL.iter().map(|value| value.as_str()).collect()),
            (mongodb, "on-invalidate", OnInvalidate::ALL.iter().map(|value| value.as_str()).collect()),
            (outbox, "ack", OutboxAck::ALL.iter().map(|value| value.as_str()).collect()),
            (mongodb, "on-history-lost", HistoryLost::ALL.iter().map(|value| value.as_str()).collect()),
        ];
        for (path, name, expected) in table {
            assert_eq!(values(path, name), expected, "{path}.{name}");
        }
    }
}
