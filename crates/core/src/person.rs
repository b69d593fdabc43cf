//! Names of people: which ones are accepted, and which ones belong to one person.
//!
//! An approval by a second person compares names. Two spellings of one name must not count as two people, and a name must not look
//! like that of somebody else: `Olga` and `olga ` are one person, and a name with an invisible character or with letters of several
//! scripts is refused. The rules are those of the
//! [Unicode security mechanisms](https://www.unicode.org/reports/tr39/): normalization (NFKC), case folding, mixed scripts, and
//! skeletons of confusable characters.

use std::fmt;

use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};
use unicode_security::mixed_script::AugmentedScriptSet;
use unicode_security::{MixedScript, skeleton};

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 100;

/// Marks the names of people in imported letters, at their end. No person has a name that ends with it.
pub const IMPORTED: &str = " (imported)";

/// The name of Lazaret itself in the audit.
const RESERVED: &str = "lazaret";

/// Why a name is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidName {
    /// It is empty, too long, or has control characters.
    NotPrintable,
    /// It has a character without a shape of its own, or one that changes the direction of the text.
    Invisible,
    /// Its letters are from scripts that are not written together.
    MixedScripts,
    /// It is the name of Lazaret itself, or looks like it, or is marked as one of an imported letter.
    Reserved,
}

impl InvalidName {
    /// The reason, as part of a message.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotPrintable => "the name must have 1 to 100 printable characters",
            Self::Invisible => "the name must not contain invisible or bidirectional characters",
            Self::MixedScripts => {
                "the name must not mix letters of several scripts, such as Latin and Cyrillic"
            }
            Self::Reserved => {
                "the name is reserved for Lazaret itself, or ends like those of imported letters"
            }
        }
    }
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for InvalidName {}

/// Returns a name as it is recorded: trimmed, with single spaces, and normalized (NFKC).
///
/// # Errors
/// When it must not be the name of a person.
///
/// ```
/// use lazaret_core::person::{InvalidName, person_name};
/// assert_eq!(person_name(" Olga  Müller ").unwrap(), "Olga Müller");
/// assert_eq!(person_name("ol\u{200b}ga"), Err(InvalidName::Invisible));
/// // The first letter is Cyrillic.
/// assert_eq!(person_name("\u{43e}lga"), Err(InvalidName::MixedScripts));
/// ```
pub fn person_name(name: &str) -> Result<String, InvalidName> {
    // Before the normalization, which would drop or replace some of them.
    if name.trim().chars().any(char::is_control) {
        return Err(InvalidName::NotPrintable);
    }
    if name.chars().any(is_invisible) {
        return Err(InvalidName::Invisible);
    }
    let name = normalized(name);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(is_unprintable) {
        return Err(InvalidName::NotPrintable);
    }
    if name.chars().any(is_invisible) {
        return Err(InvalidName::Invisible);
    }
    if is_mixed(&name) {
        return Err(InvalidName::MixedScripts);
    }
    if is_same_person(&name, RESERVED) || name.to_lowercase().ends_with(IMPORTED) {
        return Err(InvalidName::Reserved);
    }
    Ok(name)
}

/// Returns `true` if two names are those of one person: they differ in case, spaces, compatibility forms, invisible characters or
/// look-alike characters only. Also for names that older versions accepted.
///
/// ```
/// use lazaret_core::person::is_same_person;
/// assert!(is_same_person("Olga", "olga "));
/// assert!(is_same_person("olga", "ｏlga\u{200b}"));
/// assert!(!is_same_person("olga", "olaf"));
/// ```
pub fn is_same_person(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let (one, other) = (visible(one), visible(other));
    if shape(&one, char::to_lowercase) == shape(&other, char::to_lowercase) {
        return true;
    }
    // Some letters of two scripts look alike as capitals only. In ASCII, `I` and `1` alike would be too much.
    let beyond_ascii = !one.is_ascii() || !other.is_ascii();
    beyond_ascii && shape(&one, char::to_uppercase) == shape(&other, char::to_uppercase)
}

/// Returns `true` if two names may be those of one person, for rules that ask for a second one: besides what [`is_same_person`] ignores,
/// look-alikes in ASCII (`0` and `o`; `1`, `i` and `l`; `5` and `s`; `8` and `b`; `q` and `g`; `rn` and `m`; `cl` and `d`; `vv`, `uu` and
/// `w`) count as equal, and spaces and punctuation count for nothing.
///
/// Two people may be taken for one, who then have to ask a third. Rules that refuse names, or that grant something to the owner of
/// a name, compare with [`is_same_person`].
///
/// ```
/// use lazaret_core::person::may_be_same_person;
/// assert!(may_be_same_person("bernd.olin", "bemd-0Iin"));
/// assert!(may_be_same_person("olga.m", "olgam"));
/// assert!(!may_be_same_person("bernd", "bert"));
/// ```
pub fn may_be_same_person(one: &str, other: &str) -> bool {
    if is_same_person(one, other) {
        return true;
    }
    let (one, other) = (visible(one), visible(other));
    outline(&shape(&one, char::to_lowercase)) == outline(&shape(&other, char::to_lowercase))
        || outline(&shape(&one, char::to_uppercase)) == outline(&shape(&other, char::to_uppercase))
}

/// Trims the name, joins runs of spaces, and normalizes it.
fn normalized(name: &str) -> String {
    let name: String = name.nfkc().collect();
    let words: Vec<&str> = name.split_whitespace().collect();
    words.join(" ")
}

/// The visible part of a name, normalized.
fn visible(name: &str) -> String {
    // The normalization makes one invisible character from another.
    let name: String = name.nfkc().filter(|c| !is_invisible(*c)).collect();
    normalized(&name)
}

/// The skeleton of a name in one case: equal for names that look alike.
fn shape<I: Iterator<Item = char>>(name: &str, in_case: impl Fn(char) -> I) -> Vec<char> {
    // There and back folds letters that have several lower-case forms. Per character: the form of a letter must not depend on its place.
    let folded: String =
        name.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).flat_map(in_case).collect();
    let folded: String = folded.nfkc().collect();
    skeleton(&folded).collect()
}

/// A skeleton in which look-alikes of ASCII are equal, without what stands between the parts of a name.
fn outline(shape: &[char]) -> String {
    let mut outline = String::with_capacity(shape.len());
    // A skeleton has `O` for `0`, and `l` for `1` and `I`.
    for c in shape.iter().copied().flat_map(char::to_lowercase) {
        match c {
            'i' => outline.push('l'),
            '5' => outline.push('s'),
            '8' => outline.push('b'),
            'q' => outline.push('g'),
            'm' => outline.push_str("rn"),
            'd' => outline.push_str("cl"),
            'w' => outline.push_str("vv"),
            c if is_separator(c) => {}
            c => outline.push(c),
        }
    }
    // After the separators: `u.u` is `uu`, too.
    outline.replace("uu", "vv")
}

/// Returns `true` for what stands between the parts of a name, in a skeleton: spaces, and punctuation of all kinds.
fn is_separator(c: char) -> bool {
    c.is_whitespace()
        || c.is_ascii_punctuation()
        || c.general_category_group() == GeneralCategoryGroup::Punctuation
}

fn is_unprintable(c: char) -> bool {
    use GeneralCategory as Category;
    matches!(
        c.general_category(),
        Category::Control
            | Category::LineSeparator
            | Category::ParagraphSeparator
            | Category::PrivateUse
            | Category::Surrogate
            | Category::Unassigned
    )
}

/// Returns `true` for format characters, the bidirectional ones among them, and for the others that Unicode calls default-ignorable:
/// fillers and variation selectors.
fn is_invisible(c: char) -> bool {
    let is_ignorable = matches!(
        c,
        '\u{34f}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{2065}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    is_ignorable || c.general_category() == GeneralCategory::Format
}

/// Returns `true` if letters of several scripts are in a name. Chinese, Japanese and Korean are written with several scripts, also
/// beside Latin letters, and look like none of them.
fn is_mixed(name: &str) -> bool {
    if name.is_single_script() {
        return false;
    }
    let latin = AugmentedScriptSet::for_char('a');
    let is_latin = |c: &char| {
        let mut set = AugmentedScriptSet::for_char(*c);
        set.intersect_with(latin);
        !set.is_empty()
    };
    let others: String = name.chars().filter(|c| !is_latin(c)).collect();
    let set = AugmentedScriptSet::for_str(&others);
    !(set.hanb || set.jpan || set.kore)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn usual_names_are_accepted_as_they_are_written() {
        for name in [
            "ada",
            "ada@example.com",
            "Olga Müller-Lüdenscheidt",
            "O'Brien, Ada (on call)",
            "ольга",
            "Ольга Петрова",
            "李小龍",
            "たなか タロウ",
            "Tanaka 太郎",
            "김철수",
            "Σοφοκλης",
            "ci-deploy_2027+eu",
        ] {
            assert_eq!(person_name(name).as_deref(), Ok(name), "{name}");
        }
    }

    #[test]
    fn names_are_trimmed_and_normalized() {
        for (given, recorded) in [
            (" ada ", "ada"),
            ("ada\u{a0}lovelace", "ada lovelace"),
            ("ada  lovelace", "ada lovelace"),
            ("ａｄａ", "ada"),
            ("Mu\u{308}ller", "Müller"),
            ("ﬁona", "fiona"),
        ] {
            assert_eq!(person_name(given).as_deref(), Ok(recorded), "{given:?}");
        }
    }

    #[test]
    fn names_that_hide_or_imitate_something_are_refused() {
        let too_long = "x".repeat(MAX_NAME_BYTES + 1);
        for (name, why) in [
            ("", InvalidName::NotPrintable),
            (" ", InvalidName::NotPrintable),
            ("a\u{7}b", InvalidName::NotPrintable),
            ("a\nb", InvalidName::NotPrintable),
            ("a\u{e000}", InvalidName::NotPrintable),
            (too_long.as_str(), InvalidName::NotPrintable),
            ("ol\u{200b}ga", InvalidName::Invisible),
            ("\u{feff}olga", InvalidName::Invisible),
            ("olga\u{200d}", InvalidName::Invisible),
            ("\u{202e}aglo", InvalidName::Invisible),
            ("ol\u{ad}ga", InvalidName::Invisible),
            ("ol\u{2066}ga\u{2069}", InvalidName::Invisible),
            ("olga\u{3164}", InvalidName::Invisible),
            ("olga\u{e0061}", InvalidName::Invisible),
            ("\u{43e}lga", InvalidName::MixedScripts),
            ("olg\u{430}", InvalidName::MixedScripts),
            ("\u{3bf}lga", InvalidName::MixedScripts),
            ("李\u{43e}", InvalidName::MixedScripts),
            ("lazaret", InvalidName::Reserved),
            ("Lazaret ", InvalidName::Reserved),
            ("1azaret", InvalidName::Reserved),
            ("ada (Imported)", InvalidName::Reserved),
        ] {
            assert_eq!(person_name(name), Err(why), "{name:?}");
        }
    }

    #[test]
    fn spellings_of_one_name_are_one_person() {
        for (one, other) in [
            ("olga", "Olga"),
            ("olga", "olga "),
            ("olga", "ol\u{200b}ga"),
            ("olga", "olga \u{3164}"),
            ("olga", "\u{43e}lga"),
            ("olga", "ｏｌｇａ"),
            ("olga", "o1ga"),
            ("straße", "STRASSE"),
            ("ΟΔΟΣ", "οδος"),
            ("\u{430}\u{441}\u{430}", "aca"),
            ("\u{41d}\u{410}\u{422}\u{410}", "HATA"),
            ("Mu\u{308}ller", "müller"),
        ] {
            assert!(is_same_person(one, other) && is_same_person(other, one), "{one:?} {other:?}");
        }
        for (one, other) in
            [("olga", "olaf"), ("olga", "olga@example.com"), ("ada", "ada2"), ("Ольга", "Олег"), ("ops", "")]
        {
            assert!(!is_same_person(one, other), "{one:?} {other:?}");
        }
    }

    #[test]
    fn look_alikes_in_ascii_are_no_second_person_and_are_accepted_as_names() {
        for (one, other) in [
            ("olga", "0lga"),
            ("OLGA", "0LGA"),
            ("olga", "oIga"),
            ("olga", "OiGA"),
            ("ida", "Ida"),
            ("ida", "lda"),
            ("ida", "1da"),
            ("bernd", "bemd"),
            ("BERND", "bemd"),
            ("ewa", "evva"),
            ("olga.petrova", "olga-petrova"),
            ("olga.petrova", "Olga_Petrova"),
            ("olga.petrova", "olga petrova"),
            ("olga.petrova", "olga..petrova"),
            ("olga-petrova", "olga\u{2010}petrova"),
            ("olga-petrova", "0lga\u{2013}petr0va"),
            ("\u{43e}lga", "0lga"),
            ("olga.m", "olgam"),
            ("olga.m", "olga'm"),
            ("olga.m", "olga\u{b7}m"),
            ("olga.m", "olga,m"),
            ("olga.m", "olga+m"),
            ("olga.m", "-olga.m-"),
            ("olga.m", "olqa.rn"),
            ("olga.petrova", "olgapetrova"),
            ("claus", "daus"),
            ("ewa", "euua"),
            ("rosa", "ro5a"),
            ("bob", "8ob"),
        ] {
            assert!(may_be_same_person(one, other) && may_be_same_person(other, one), "{one:?} {other:?}");
        }
        for (one, other) in [
            ("olga", "olaf"),
            ("olga.m", "olga.nn"),
            ("olga.m", "olga"),
            ("olga", "olga@example.com"),
            ("bernd", "bend"),
            ("ada", "ada2"),
            ("eva", "ewa"),
            ("ops", ""),
        ] {
            assert!(!may_be_same_person(one, other), "{one:?} {other:?}");
        }
        for name in ["0lga", "bemd", "evva", "oIga", "olga_petrova", "olga..petrova"] {
            assert_eq!(person_name(name).as_deref(), Ok(name));
        }
        assert!(!is_same_person("olga.petrova", "olga-petrova"), "two tokens may have these names");
    }

    proptest! {
        #[test]
        fn an_accepted_name_is_recorded_in_one_form(name in "\\PC{0,24}") {
            if let Ok(recorded) = person_name(&name) {
                prop_assert_eq!(person_name(&recorded), Ok(recorded.clone()), "{:?}", name);
                prop_assert!(is_same_person(&name, &recorded));
                prop_assert!(!recorded.chars().any(|c| c.is_control() || is_invisible(c)));
            }
        }

        #[test]
        fn case_spaces_and_invisible_characters_make_no_second_person(
            name in "[a-z]{1,8}( [a-z]{1,8})?",
            at in any::<prop::sample::Index>(),
            hidden in "[\u{200b}-\u{200f}\u{202a}-\u{202e}\u{2060}-\u{2064}\u{ad}\u{feff}]",
        ) {
            let mut with_hidden = name.clone();
            with_hidden.insert_str(at.index(name.len() + 1), &hidden);
            for other in [name.to_uppercase(), format!("  {name}\t"), name.replace(' ', "\u{2003} "), with_hidden] {
                prop_assert!(is_same_person(&name, &other), "{:?} {:?}", name, other);
                prop_assert!(is_same_person(&other, &name));
            }
        }

        #[test]
        fn a_letter_of_another_script_is_refused(name in "[a-z]{2,8}", at in any::<prop::sample::Index>(), other in "[а-яα-ω]") {
            let at = at.index(name.len());
            let mixed = format!("{}{other}{}", &name[..at], &name[at + 1..]);
            prop_assert_eq!(person_name(&mixed), Err(InvalidName::MixedScripts));
        }

        #[test]
        fn nothing_panics(one in any::<String>(), other in any::<String>()) {
            _ = person_name(&one);
            prop_assert_eq!(is_same_person(&one, &other), is_same_person(&other, &one));
            prop_assert_eq!(may_be_same_person(&one, &other), may_be_same_person(&other, &one));
            prop_assert!(may_be_same_person(&one, &one));
        }
    }
}
