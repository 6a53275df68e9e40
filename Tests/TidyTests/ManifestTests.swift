import Testing

@Suite("Tidy: the manifest lists what the targets import")
struct ManifestTests {
    /// A target of Swift files, as the manifest has it.
    struct Target: Equatable {
        var name: String
        var path: String
        /// The modules that it may import.
        var modules: [String]
    }

    @Test("Each dependency of a target is imported by one of its files")
    func dependencies() throws {
        let manifest = try #require(SourceTree.files.first { $0.path == "Package.swift" })
        let targets = Self.targets(of: manifest.text)
        let declared = manifest.text.matches(
            of: /(?m)^ {8}(?:layer|test|\.executableTarget|\.testTarget)\($|^ {8}(?:layer|test)\("/
        ).count
        #expect(targets.count == declared, "\(targets.count) targets are read of \(declared)")
        for target in targets {
            let files = SourceTree.files.filter { $0.isSwift && $0.path.hasPrefix(target.path + "/") }
            #expect(!files.isEmpty, "\(target.name) has no files in \(target.path)")
            let imported = Set(files.flatMap(\.imports))
            for module in target.modules where !imported.contains(module) {
                Issue.record("\(target.name) depends on \(module), and none of its files imports it")
            }
        }
    }

    @Test("Each outside product that the manifest names is a dependency of a target")
    func products() throws {
        let manifest = try #require(SourceTree.files.first { $0.path == "Package.swift" })
        let used = Set(Self.targets(of: manifest.text).flatMap(\.modules))
        let products = Self.products(of: manifest.text)
        #expect(!products.isEmpty)
        for (name, module) in products where !used.contains(module) {
            Issue.record("no target depends on \(name), the product \(module)")
        }
    }

    @Test("A manifest is read with its layers, tests and executables")
    func reading() {
        let text = """
            let nioCore: Target.Dependency = .product(name: "NIOCore", package: "swift-nio")
                    layer("Core", "A", [nioCore]),
                    layer(
                        "Edges", "B",
                        [
                            "A", nioCore,
                        ]),
                    .executableTarget(
                        name: "c", dependencies: ["B"], path: "Sources/Command/c", swiftSettings: settings),
                    layer("Core", "D", ["A"], for: .size),
                    test("BTests", ["A", "B"], exclude: ["Fixtures"]),
                    test(
                        "DTests", ["D"],
                        in: "Other", for: .speed),
            """
        let expected = [
            Target(name: "A", path: "Sources/Core/A", modules: ["NIOCore"]),
            Target(name: "B", path: "Sources/Edges/B", modules: ["A", "NIOCore"]),
            Target(name: "c", path: "Sources/Command/c", modules: ["B"]),
            Target(name: "D", path: "Sources/Core/D", modules: ["A"]),
            Target(name: "BTests", path: "Tests/BTests", modules: ["A", "B"]),
            Target(name: "DTests", path: "Tests/Other", modules: ["D"]),
        ]
        let targets = Self.targets(of: text)
        #expect(targets.count == expected.count)
        for target in expected { #expect(targets.contains(target), "\(target.name) is missing of \(targets)") }
    }

    /// The manifest's constants for products, with the modules that they are.
    private static func products(of text: String) -> [(name: String, module: String)] {
        text.matches(of: /(?m)^let (\w+): Target\.Dependency = \.product\(name: "(\w+)"/).map {
            (String($0.1), String($0.2))
        }
    }

    private static func targets(of text: String) -> [Target] {
        let products = Dictionary(uniqueKeysWithValues: products(of: text).map { ($0.name, $0.module) })
        func modules(_ list: Substring) -> [String] {
            list.split(whereSeparator: { ", \n".contains($0) }).map { word in
                word.hasPrefix("\"") ? word.filter { $0 != "\"" } : products[String(word)] ?? String(word)
            }
        }
        let layers = text.matches(of: /layer\(\s*"(\w+)", "(\w+)",\s*\[([^\]]*)\](?:, for: [^)]*)?\)/).map {
            Target(name: String($0.2), path: "Sources/\($0.1)/\($0.2)", modules: modules($0.3))
        }
        let tests = text.matches(of: /\btest\(\s*"(\w+)",\s*\[([^\]]*)\](?:,\s*in: "(\w+)")?/).map {
            Target(name: String($0.1), path: "Tests/\($0.3 ?? $0.1)", modules: modules($0.2))
        }
        let other =
            #/
            \.(?:executableTarget|testTarget)\(\s*name:\s"([\w\-]+)",\s*
            dependencies:\s\[([^\]]*)\],\s*path:\s"([^"]+)"
            /#
        let others = text.matches(of: other).map {
            Target(name: String($0.1), path: String($0.3), modules: modules($0.2))
        }
        return layers + tests + others
    }
}
