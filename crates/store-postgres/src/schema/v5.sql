-- What happened to a subject, such as a letter, by a hash of eight bytes. The text is compared as well.
CREATE INDEX audit_subject ON audit (hashtextextended(subject, 0), number);
