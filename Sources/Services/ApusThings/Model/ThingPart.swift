package import ApusCore

/// The part of a model that one write or report sets: the value of a leaf, or a field of the value (IV-D4).
///
/// Pure value.
package struct ThingPart: Sendable, Equatable {
    package let root: ThingRoot
    /// The name of the leaf.
    package let name: String
    /// The path below the leaf's value; empty: the whole value.
    package let fields: [String]
    package let value: JSONValue

    /// Reads both forms of a write: `ProWritable.volume` with `{"setVal":3}`, and `ProWritable.volume.setVal` with `3`.
    /// A time in the leaf is ignored, since the cluster sets it.
    ///
    /// - Throws: 20101 if the path does not lead to a value, 20102 or 10002 if the text is not valid JSON for it.
    package init(_ path: ThingPath, _ json: String) throws(ApusError) {
        // The depth of a value is the same in both forms: the leaf around it does not count.
        let value = try JSONValue(checking: json, depthMax: JSONValue.depthMax + (path.fields.isEmpty ? 1 : 0))
        guard let root = path.root, let name = path.name else {
            throw ApusError(.pathIllegal, "a path to a leaf is expected")
        }
        (self.root, self.name) = (root, name)
        guard let first = path.fields.first else {
            guard case .object(let members) = value, members.allSatisfy({ [root.valueName, "t"].contains($0.name) }),
                let inner = value[root.valueName]
            else {
                throw ApusError(.jsonInvalid, "the JSON for \(root.name).\(name) is {\"\(root.valueName)\":VALUE}")
            }
            (fields, self.value) = ([], inner)
            return
        }
        guard first == root.valueName else {
            throw ApusError(.pathIllegal, "only \(root.name).\(name).\(root.valueName) can be written")
        }
        (fields, self.value) = (Array(path.fields.dropFirst()), value)
    }

    /// The whole value of a leaf.
    package init(_ root: ThingRoot, _ name: String, _ value: JSONValue) {
        (self.root, self.name, fields, self.value) = (root, name, [], value)
    }

    /// The path of the value, such as `ProWritable.wifi.setVal.channel`.
    package var path: String { ([root.name, name, root.valueName] + fields).joined(separator: ".") }

    /// True for the state that names the device's product.
    package var isProduct: Bool { root == .readonly && name == ThingState.productName }

    /// The product that a report of ``ThingState/productName`` names.
    ///
    /// - Throws: 20102 if the value is not the name of a product.
    package func product() throws(ApusError) -> String {
        guard fields.isEmpty, let text = value.string, ProductID(rawValue: text) != nil else {
            throw ApusError(.jsonInvalid, "the value of \(path) is the name of a product: \(ProductID.limits)")
        }
        return text
    }
}
