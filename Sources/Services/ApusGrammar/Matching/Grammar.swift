package import ApusCore

/// The sentences of a language with the lists of an account: its devices, areas and contacts.
///
/// **Matching.** ``match(_:context:)`` walks the nodes over the positions of a text. Each node is visited at most once
/// per position, so the time grows with the length of the text, and never with the number of forms that the sentences
/// have. An unknown value of a list is no match: it never stands for another value, or for all of them.
///
/// **Numbers.** A text has all readings of its numbers at once: `twenty five` is 25, and also 20 and 5.
///
/// Pure value.
package struct Grammar: Sendable {
    let tables: GrammarTables

    /// The sentences without the lists of the account.
    package var templates: GrammarTemplates { tables.templates }

    /// Binds the lists of an account.
    ///
    /// - Parameter lists: values of the lists that sentences name, as plain text. A list that is missing has no values.
    ///   Values without a letter or a digit cannot be said, and are left out.
    /// - Throws: 10002 if a list has more than ``GrammarLimits/valueCountMax`` values; 21031 if a range is not one.
    package init(_ templates: GrammarTemplates, lists: [GrammarList] = []) throws(ApusError) {
        tables = try GrammarTables(templates, lists)
    }
}
