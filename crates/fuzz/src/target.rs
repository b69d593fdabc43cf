//! Runs a target over many seeds.

use std::any::Any;
use std::io::{Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::mutate::{Material, Shape};
use crate::shrink::shrink;
use crate::watch::Watch;

/// The number of inputs in `cargo test`.
const COUNT: u64 = 2000;
/// The first seed in `cargo test`: every run checks the same inputs.
const SEED: u64 = 1;
/// The number of bytes of an input that are shown.
const SHOWN: usize = 2000;

/// A fuzz target: a corpus, the shape of its inputs, and a check.
pub struct Fuzz {
    name: &'static str,
    corpus: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
    shape: Shape,
    count: u64,
}

impl Fuzz {
    /// Creates a target. `cargo xtask fuzz --target NAME` runs it.
    pub fn target(name: &'static str) -> Self {
        Self { name, corpus: Vec::new(), words: Vec::new(), shape: Shape::Binary, count: COUNT }
    }

    /// Adds valid inputs. They are checked first, unchanged.
    #[must_use]
    pub fn corpus<I: AsRef<[u8]>>(mut self, inputs: impl IntoIterator<Item = I>) -> Self {
        self.corpus.extend(inputs.into_iter().map(|input| input.as_ref().to_vec()));
        self
    }

    /// Adds words of the format, which are inserted into inputs.
    #[must_use]
    pub fn words<I: AsRef<[u8]>>(mut self, words: impl IntoIterator<Item = I>) -> Self {
        self.words.extend(words.into_iter().map(|word| word.as_ref().to_vec()));
        self
    }

    /// Sets the shape of the inputs; default: [`Shape::Binary`].
    #[must_use]
    pub fn shape(mut self, shape: Shape) -> Self {
        self.shape = shape;
        self
    }

    /// Sets the number of inputs in `cargo test`; default: 2,000.
    #[must_use]
    pub fn count(mut self, count: u64) -> Self {
        self.count = count;
        self
    }

    /// Runs the check on the corpus and on mutated inputs.
    ///
    /// # Panics
    /// Panics at the first input that fails, with its seed and the shrunk input.
    pub fn run(self, check: impl Fn(&[u8]) -> Result<(), String>) {
        let (name, material) = (self.name, self.material());
        self.check_corpus(&check);
        let first = variable("LAZARET_FUZZ_SEED").unwrap_or(SEED);
        let until =
            variable("LAZARET_FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let count =
            variable("LAZARET_FUZZ_COUNT").unwrap_or(if until.is_some() { u64::MAX } else { self.count });
        let mut progress = std::env::var_os("LAZARET_FUZZ_PROGRESS")
            .map(|path| std::fs::File::create(path).expect("the progress file can be created"));
        let watch = Watch::start(name);
        let mut done = 0;
        while done < count && until.is_none_or(|until| Instant::now() < until) {
            let seed = first.wrapping_add(done);
            if let Some(file) = &mut progress {
                write_seed(file, seed);
            }
            let input = material.input(seed);
            watch.enter(seed);
            if let Err(why) = outcome(&check, &input) {
                watch.leave();
                let small = shrink(&input, |input| outcome(&check, input).is_err());
                let why = outcome(&check, &small).err().unwrap_or(why);
                panic!("{}\n{}", report(name, seed, &why), shown(&small));
            }
            done += 1;
        }
        println!("fuzz target {name}: {done} inputs from seed {first}");
    }

    /// Asserts that the inputs of `cargo test` find a planted bug: `planted` is the check of the target on faulty code. The corpus does
    /// not show the bug, so a mutation has to.
    ///
    /// # Panics
    /// Panics if no input finds it, or if the corpus does.
    #[track_caller]
    pub fn finds(self, planted: impl Fn(&[u8]) -> Result<(), String>) {
        self.check_corpus(&planted);
        let material = self.material();
        let found = (SEED..SEED + self.count).find(|seed| outcome(&planted, &material.input(*seed)).is_err());
        assert!(
            found.is_some(),
            "fuzz target {}: {} inputs do not find the planted bug",
            self.name,
            self.count
        );
    }

    fn material(&self) -> Material<'_> {
        Material { corpus: &self.corpus, words: &self.words, shape: self.shape }
    }

    fn check_corpus(&self, check: &impl Fn(&[u8]) -> Result<(), String>) {
        let name = self.name;
        for (input, number) in self.corpus.iter().zip(1..) {
            if let Err(why) = outcome(check, input) {
                panic!("fuzz target {name}: item {number} of the corpus fails: {why}\n{}", shown(input));
            }
        }
    }
}

/// Runs the check; a panic is an error.
fn outcome(check: &impl Fn(&[u8]) -> Result<(), String>, input: &[u8]) -> Result<(), String> {
    let text = |panic: &(dyn Any + Send)| match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>())
    {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        (None, None) => "a value that is no text".to_owned(),
    };
    catch_unwind(AssertUnwindSafe(|| check(input)))
        .unwrap_or_else(|panic| Err(format!("panicked: {}", text(&*panic))))
}

pub(crate) fn report(target: &str, seed: u64, why: &str) -> String {
    format!(
        "fuzz target {target} failed with seed {seed}: {why}\nrepeat it with: cargo xtask fuzz --target {target} --seed {seed} --count 1"
    )
}

fn shown(input: &[u8]) -> String {
    let (start, more) = input.split_at(input.len().min(SHOWN));
    let rest = if more.is_empty() { "" } else { " …" };
    format!("input of {} bytes: b\"{}\"{rest}", input.len(), start.escape_ascii())
}

/// Overwrites the seed in the file; the width is fixed.
fn write_seed(file: &mut std::fs::File, seed: u64) {
    let written = file.seek(SeekFrom::Start(0)).and_then(|_| write!(file, "{seed:020}"));
    written.expect("the progress file can be written");
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_found_and_shrunk() {
        let fuzz = Fuzz::target("planted").corpus(["a:1 b:2"]).words([":"]).shape(Shape::Text);
        let check = |input: &[u8]| {
            let text = String::from_utf8_lossy(input);
            // The bug: an empty name.
            match text.split(' ').any(|pair| pair.starts_with(':')) {
                true => panic!("empty name"),
                false => Ok(()),
            }
        };
        let found = catch_unwind(AssertUnwindSafe(|| fuzz.run(check))).unwrap_err();
        let text = found.downcast_ref::<String>().unwrap();
        assert!(text.contains("panicked: empty name") && text.contains("--target planted --seed "), "{text}");
        assert!(text.ends_with("input of 1 bytes: b\":\""), "{text}");
    }

    #[test]
    fn a_planted_bug_that_is_not_found_is_a_failure() {
        let target = || Fuzz::target("planted").corpus(["a:1 b:2"]).words([":"]).shape(Shape::Text);
        let fails = |bug: fn(&[u8]) -> bool| {
            catch_unwind(|| target().finds(|input| if bug(input) { Err("found".into()) } else { Ok(()) }))
                .is_err()
        };
        assert!(!fails(|input| input.starts_with(b":")));
        assert!(fails(|_| false), "nothing shows it");
        assert!(fails(|input| input.starts_with(b"a:1")), "the corpus shows it");
    }

    #[test]
    fn an_invalid_corpus_is_a_failure() {
        let run = || Fuzz::target("x").corpus(["bad"]).run(|_| Err("no".into()));
        assert!(catch_unwind(run).is_err());
    }
}
