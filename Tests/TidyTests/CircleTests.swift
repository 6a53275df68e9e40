import Testing

/// No files of one target that need one another in a circle, but for the known ones.
///
/// A file needs another one if it names a type that the other one declares at its top level. The extensions of a type,
/// in `Type+Part.swift`, count as its file.
@Suite("Circles of files")
struct CircleTests {
    /// The circles of more than three files that are known, each by the first of them. Smaller ones are not listed, as
    /// types that name one another are a common form.
    private static let known = [
        // Verbs and the namespaces that list them.
        "Sources/Command/ApusCLI ClusterClientNamespace": 15, "Sources/Command/ApusCLI RelayAccessOptions": 5,
        // A listener, its loops, their connections.
        "Sources/Edges/ApusGateway ClientHandler": 4,
        // A WebSocket, what its messages mean, and its streams.
        "Sources/Edges/ApusHTTP ClientTexts": 6,
        // A client, its loop, and the requests on it.
        "Sources/Engine/ApusHTTPClient HTTPClient": 4,
        // A service, its loops, their hubs, and the links between nodes.
        "Sources/Services/ApusChannels ChannelHub": 7,
        "Sources/Testing/ApusSimulation EntityAsks": 5,
    ]
    private static let smallMax = 3

    @Test("No circle of more than three files is new, and those that are known have not grown")
    func circles() throws {
        var found: [String: Int] = [:]
        let files = SourceTree.files.filter { $0.isSwift && !$0.isGenerated && $0.path.hasPrefix("Sources/") }
        for (target, files) in Dictionary(
            grouping: files, by: { $0.path.split(separator: "/").prefix(3).joined(separator: "/") })
        {
            for circle in Self.circles(of: files) where circle.count > Self.smallMax {
                found["\(target) \(circle.min() ?? "")"] = circle.count
            }
        }
        #expect(found == Self.known)
    }

    /// The groups of at least two types whose files need one another.
    private static func circles(of files: [SourceTree.File]) -> [[String]] {
        let declaration =
            #/
            ^(?:@\w+(?:\([^)]*\))?\ )*(?:(?:public|package|internal|final|indirect)\ )*
            (?:struct|class|enum|actor|protocol|typealias)\ (\w+)
            /#
        let texts = files.map { file in
            (unit(of: file), file.lines.map { code($0) })
        }
        var owners: [Substring: String] = [:]
        for (unit, lines) in texts {
            // A type of the top level is declared at the start of a line.
            for line in lines where line.utf8.first != UInt8(ascii: " ") {
                if let match = line.firstMatch(of: declaration), owners[match.1] == nil { owners[match.1] = unit }
            }
        }
        var needs: [String: Set<String>] = [:]
        for (unit, lines) in texts {
            for line in lines {
                for word in line.split(whereSeparator: { !($0.isLetter || $0.isNumber || $0 == "_") }) {
                    if let owner = owners[word], owner != unit { needs[unit, default: []].insert(owner) }
                }
            }
        }
        return components(needs)
    }

    private static func unit(of file: SourceTree.File) -> String {
        String(file.name.dropLast(".swift".count).split(separator: "+").first ?? "")
    }

    /// A line without its comment and its texts.
    private static func code(_ line: Substring) -> Substring {
        guard let first = line.first(where: { $0 != " " }), first != "/" else { return "" }
        guard line.utf8.contains(UInt8(ascii: "\"")) || line.utf8.contains(UInt8(ascii: "/")) else { return line }
        return Substring(line.replacing(/"(?:\\.|[^"\\])*"/, with: "").replacing(/\/\/.*/, with: ""))
    }

    /// Tarjan's algorithm: sets of vertices that reach one another.
    private static func components(_ edges: [String: Set<String>]) -> [[String]] {
        var (indices, lows, stack, found) = ([String: Int](), [String: Int](), [String](), [[String]]())
        func visit(_ vertex: String) {
            let index = indices.count
            (indices[vertex], lows[vertex]) = (index, index)
            stack.append(vertex)
            for next in edges[vertex, default: []].sorted() {
                if indices[next] == nil {
                    visit(next)
                    lows[vertex] = min(lows[vertex] ?? index, lows[next] ?? index)
                } else if stack.contains(next) {
                    lows[vertex] = min(lows[vertex] ?? index, indices[next] ?? index)
                }
            }
            guard lows[vertex] == index, let start = stack.firstIndex(of: vertex) else { return }
            if stack.count - start > 1 { found.append(Array(stack[start...])) }
            stack.removeSubrange(start...)
        }
        for vertex in edges.keys.sorted() where indices[vertex] == nil { visit(vertex) }
        return found
    }
}
