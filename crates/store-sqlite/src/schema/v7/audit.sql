-- What happened to a subject, such as a letter, in the order of the numbers: they are the row ids.
CREATE INDEX audit_subject ON audit (subject);
