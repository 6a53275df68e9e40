package import ApusCore

/// The schema of a product's thing model: its leaves, and the values that they may have (IV-D1 to IV-D5,
/// docs/things.md).
///
/// The document is a JSON Schema of the model. It has the values directly at the leaves, without times and `setVal`:
///
/// **Parts.** A write is checked without the rest of the model. The whole model remains valid, for these reasons:
/// - The written value fits the schema at its path, and all other values stay the same.
/// - `enum` and `const` have only scalars, so the validity of an object never depends on a combination of members. A
///   schema with one of them allows no objects, so no path leads into it.
/// - A write adds and replaces members, and never removes one. An object that has all `required` members keeps them.
///   Arrays are replaced as a whole.
///
/// `required` is not enforced for the model itself and its roots, since a device reports its leaves one by one.
///
/// **Exceptions.** Properties of the account (`ProUser`) are not checked. Built-in leaves, whose names begin with `_`,
/// are checked only if `properties` lists them, since the cluster and later releases may add others.
///
/// Pure value.
package struct ThingSchema: Sendable, Equatable {
    /// The longest document, in bytes.
    package static let byteCountMax = 16 << 10
    /// The maximum nesting depth of a document.
    package static let depthMax = 32
    /// The longest position within a value that a message shows, in characters.
    private static let placeCountMax = 128

    private let model: JSONSchema

    /// Compiles a document.
    ///
    /// - Throws: 10002 over ``byteCountMax``; 21031 with the position and the reason if the document is not JSON, has a
    ///   keyword that is not in the subset, or is not a schema of a model.
    package init(_ text: String) throws(ApusError) {
        guard text.utf8.count <= Self.byteCountMax else {
            throw ApusError(
                .frameTooLarge, "the schema has \(text.utf8.count) bytes, and at most \(Self.byteCountMax)")
        }
        guard let document = JSONValue(ArraySlice(text.utf8), depthMax: Self.depthMax, isStored: true) else {
            throw ApusError(
                schema: "",
                """
                no JSON, or nested deeper than \(Self.depthMax), with an object of more than \
                \(JSONValue.memberCountMax) members, or a number of more than \(JSONValue.numberByteCountMax) characters
                """)
        }
        guard case .object = document else { throw ApusError(schema: "", "an object is expected") }
        model = try JSONSchema(document)
        guard model.allowsObjects else { throw ApusError(schema: "", "a model is an object, and does not fit") }
        try Self.checkNames(document)
    }

    /// Checks the names of roots and leaves. A misspelled one would otherwise never be checked.
    private static func checkNames(_ document: JSONValue) throws(ApusError) {
        guard case .object(let roots)? = document["properties"] else { return }
        for root in roots {
            let pointer = "/properties".appending(token: root.name)
            guard !root.name.isExactly(ThingRoot.user.name) else {
                throw ApusError(schema: pointer, "properties of the account are checked by no schema")
            }
            guard let known = ThingRoot.all.first(where: { $0.name.isExactly(root.name) }) else {
                let names = ThingRoot.all.filter { $0 != .user }.map(\.name).joined(separator: ", ")
                throw ApusError(schema: pointer, "a model has the roots \(names)")
            }
            guard case .object(let leaves)? = root.value["properties"] else { continue }
            for leaf in leaves where (try? ThingPath.check(leaf.name)) == nil {
                throw ApusError(
                    schema: "\(pointer)/properties".appending(token: leaf.name),
                    "no leaf of \(known.name) has this name")
            }
        }
    }

    /// Checks the value of a write, a report or an action.
    ///
    /// - Throws: 20101 if the schema has nothing at the path, 20102 with the keyword if the value does not fit.
    package func check(_ part: ThingPart) throws(ApusError) {
        guard part.root != .user else { return }
        let root = model.member(part.root.name)
        let isBuiltIn = part.name.hasPrefix("_")
        let leaf = isBuiltIn ? model.listed(part.root.name)?.listed(part.name) ?? .anything : root.member(part.name)
        let schema = part.fields.reduce(leaf) { $0.member($1) }
        guard schema != .nothing else {
            throw ApusError(.pathIllegal, "the schema of the product has nothing at \(part.path)")
        }
        guard let failure = schema.failure(of: part.value) else { return }
        let place = failure.place.isEmpty ? "" : " at \(Self.shown(failure.place))"
        throw ApusError(
            .jsonInvalid,
            "\(part.path) does not fit the schema of the product\(place): \(failure.keyword): \(failure.expected)")
    }

    private static func shown(_ place: [String]) -> String {
        let text = place.map { String($0.prefix(ThingPath.nameByteCountMax)) }.joined(separator: ".")
        return UntrustedText.escaped(String(text.prefix(placeCountMax)))
    }

    /// The first failure of a whole model with values at the leaves; nil if it fits. For tests and tools.
    package func failure(ofModel value: JSONValue) -> JSONSchema.Failure? { model.failure(of: value) }
}
