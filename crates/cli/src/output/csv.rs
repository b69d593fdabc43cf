//! Formats JSON objects as CSV, one column per path.

use serde_json::Value;

use crate::sanitize::csv_cell;

/// Returns the header line.
pub(crate) fn csv_header(paths: &[&str]) -> String {
    paths.join(",")
}

/// Returns the line of one object. A path such as `error.type` selects a nested field; a missing field is empty.
pub(crate) fn csv_row(paths: &[&str], value: &Value) -> String {
    let cells: Vec<String> = paths.iter().map(|path| csv_cell(&text(find(value, path)))).collect();
    cells.join(",")
}

fn find<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, name| value.get(name).unwrap_or(&Value::Null))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        // An empty map is an empty cell.
        Value::Object(map) if map.is_empty() => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_select_nested_fields() {
        let value = serde_json::json!({
            "id": "a", "n": 3, "error": {"type": "=Evil()", "message": "x,\n\"y\""}, "none": null, "map": {}, "list": [1, "b"],
        });
        let paths = ["id", "n", "error.type", "error.message", "none", "missing.deep", "map", "list"];
        assert_eq!(csv_row(&paths, &value), r#"a,3,'=Evil(),"x,\n""y""",,,,"[1,""b""]""#);
        assert_eq!(csv_header(&paths[..3]), "id,n,error.type");
    }
}
