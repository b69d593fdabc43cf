//! Parses SPDX licence expressions and checks whether they are allowed.
//!
//! The syntax has names, `OR`, `AND`, `WITH` and parentheses; `WITH` binds tighter than `AND`, and `AND` tighter than `OR`. The
//! slash of old crates (`MIT/Apache-2.0`) means `OR`.

/// The allowed licences.
const ALLOWED: [&str; 14] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    // Permissive, for data: the list of root certificates that the HTTP client includes on some systems.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Returns whether the package can be used under allowed licences alone. Fails when the expression is invalid.
pub(crate) fn is_allowed(expression: &str) -> Result<bool, String> {
    let words = words(expression);
    let mut reader = Reader { words: &words };
    let allowed = reader.alternatives()?;
    match reader.words {
        [] => Ok(allowed),
        [word, ..] => Err(format!("unexpected {word:?} in {expression:?}")),
    }
}

fn words(expression: &str) -> Vec<String> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    spaced.split_whitespace().map(str::to_owned).collect()
}

/// A recursive-descent parser. Each method parses one part and returns whether it is allowed.
struct Reader<'a> {
    words: &'a [String],
}

impl Reader<'_> {
    fn alternatives(&mut self) -> Result<bool, String> {
        let mut allowed = self.conjunction()?;
        while self.take_if("OR") {
            // No short-circuit: the right side must be parsed in any case.
            allowed |= self.conjunction()?;
        }
        Ok(allowed)
    }

    fn conjunction(&mut self) -> Result<bool, String> {
        let mut allowed = self.licence()?;
        while self.take_if("AND") {
            allowed &= self.licence()?;
        }
        Ok(allowed)
    }

    fn licence(&mut self) -> Result<bool, String> {
        if self.take_if("(") {
            let allowed = self.alternatives()?;
            return if self.take_if(")") { Ok(allowed) } else { Err("unclosed parenthesis".to_owned()) };
        }
        let mut licence = self.name()?;
        if self.take_if("WITH") {
            licence = format!("{licence} WITH {}", self.name()?);
        }
        Ok(ALLOWED.contains(&&*licence))
    }

    fn name(&mut self) -> Result<String, String> {
        match self.words.split_first() {
            Some((word, rest)) if !matches!(&**word, "OR" | "AND" | "WITH" | "(" | ")") => {
                self.words = rest;
                Ok(word.clone())
            }
            Some((word, _)) => Err(format!("expected a licence before {word:?}")),
            None => Err("expected a licence at the end".to_owned()),
        }
    }

    fn take_if(&mut self, expected: &str) -> bool {
        match self.words.split_first() {
            Some((word, rest)) if word == expected => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_allowed_when_one_way_through_it_is() {
        let table = [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("MIT OR GPL-3.0-only", true),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("MIT AND Zlib", true),
            ("MIT/Apache-2.0", true),
            ("Apache-2.0 / GPL-2.0", true),
            ("GPL-2.0/LGPL-2.1", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND OpenSSL", false),
            ("MIT OR Apache-2.0 AND OpenSSL", true),
            ("OpenSSL AND MIT OR Apache-2.0", true),
            ("((ISC))", true),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("GPL-2.0-only WITH Classpath-exception-2.0", false),
            ("MIT WITH LLVM-exception", false),
            ("mit", false),
        ];
        for (expression, expected) in table {
            assert_eq!(is_allowed(expression), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn an_expression_that_makes_no_sense_is_an_error() {
        for expression in
            ["", "MIT OR", "OR MIT", "MIT AND OR ISC", "(MIT", "MIT)", "MIT ISC", "()", "MIT WITH"]
        {
            assert!(is_allowed(expression).is_err(), "{expression}");
        }
    }
}
