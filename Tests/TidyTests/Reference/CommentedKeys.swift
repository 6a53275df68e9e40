import Foundation

/// The keys of a commented YAML file, each with what stands above it.
///
/// Reads the form that cluster-configs/ has: maps of maps and scalars, two spaces for each level, comments on lines of
/// their own. `# ---- Title` opens a section. An empty line separates a comment from what follows.
struct CommentedKeys {
    struct Key {
        /// With the keys of the maps around it.
        let name: String
        /// The lines above the key, joined; empty where there are none.
        let comment: String
        /// The title above the key; nil where it goes on with the section before.
        let section: String?
        let isMap: Bool
    }

    private(set) var keys: [Key] = []

    init(_ text: String) {
        var path: [String] = []
        var comment: [String] = []
        var section: String?
        for line in text.split(separator: "\n", omittingEmptySubsequences: false) {
            let code = line.drop { $0 == " " }
            if code.isEmpty {
                comment = []
            } else if code.hasPrefix("# ---- ") {
                (section, comment) = (String(code.dropFirst(7)), [])
            } else if code.hasPrefix("#") {
                comment.append(code.drop { $0 == "#" }.trimmingCharacters(in: .whitespaces))
            } else if let colon = code.firstIndex(of: ":") {
                let depth = (line.count - code.count) / 2
                path = path.prefix(depth) + [String(code[..<colon])]
                let value = code[code.index(after: colon)...].trimmingCharacters(in: .whitespaces)
                keys.append(
                    Key(
                        name: path.joined(separator: "."), comment: comment.joined(separator: " "), section: section,
                        isMap: value.isEmpty))
                (section, comment) = (nil, [])
            }
        }
    }
}
