import Foundation
import Testing

/// Dependencies are ranges in the manifest, for packages that depend on Apus, and exact versions in the lock, for the
/// builds of Apus itself (CONTRIBUTING.md).
@Suite("Tidy: dependencies")
struct DependencyTests {
    /// A version with its three numbers.
    struct Version: Equatable {
        var major: Int
        var minor: Int
        var patch: Int

        init(_ major: Int, _ minor: Int, _ patch: Int) { (self.major, self.minor, self.patch) = (major, minor, patch) }

        /// Nil where the text is not of three numbers.
        init?(_ text: some StringProtocol) {
            let numbers = text.split(separator: ".", omittingEmptySubsequences: false).map { Int($0) }
            guard numbers.count == 3, let major = numbers[0], let minor = numbers[1], let patch = numbers[2] else {
                return nil
            }
            self.init(major, minor, patch)
        }

        /// True if a range from `lower` up to the next major version has it.
        func fits(from lower: Self) -> Bool {
            major == lower.major && (minor, patch) >= (lower.minor, lower.patch)
        }
    }

    /// A lock as SwiftPM writes it, as far as it is read here.
    struct Lock: Decodable {
        struct Pin: Decodable {
            struct State: Decodable { var version: String? }
            var location: String
            var state: State
        }
        var pins: [Pin]
    }

    @Test("Each dependency of the manifest is a range up to the next major version")
    func ranges() throws {
        let manifest = try Self.manifest()
        let declared = manifest.matches(of: /\.package\(/).count
        #expect(declared > 10, "the dependencies are written in another way")
        #expect(Self.ranges(of: manifest).count == declared, "a dependency is not `from:` a version")
    }

    @Test("An exact version is not a range, and a version below the lower bound does not fit it")
    func reading() {
        let text = """
            .package(url: "https://host/one", from: "1.2.0"),
            .package(url: "https://host/two", exact: "1.2.3"),
            .package(url: "https://host/three", from: "2.0.1", traits: []),
            """
        let ranges = Self.ranges(of: text)
        #expect(ranges.map(\.url) == ["https://host/one", "https://host/three"])
        #expect(ranges.map(\.from) == [Version(1, 2, 0), Version(2, 0, 1)])
        #expect(Version(1, 2, 0).fits(from: Version(1, 2, 0)) && Version(1, 3, 0).fits(from: Version(1, 2, 9)))
        #expect(!Version(1, 2, 0).fits(from: Version(1, 2, 1)) && !Version(2, 0, 0).fits(from: Version(1, 2, 1)))
        #expect(Version("1.2") == nil && Version("1.2.3-beta") == nil)
    }

    @Test("The lock has a version of each dependency of the manifest, within its range, and is committed")
    func lock() throws {
        let file = FileManager.default.contents(atPath: "\(SourceTree.root)/scripts/lib/packages.lock")
        let lock = try JSONDecoder().decode(Lock.self, from: try #require(file, "the lock is missing"))
        for (url, from) in Self.ranges(of: try Self.manifest()) {
            let pin = lock.pins.first { [url, "\(url).git"].contains($0.location) }
            guard let text = pin?.state.version, let version = Version(text) else {
                Issue.record("the lock has no version of \(url)")
                continue
            }
            #expect(version.fits(from: from), "the lock has \(text) of \(url), which the manifest does not allow")
        }
        // The build that runs this test is of these versions.
        let used = FileManager.default.contents(atPath: "\(SourceTree.root)/Package.resolved")
        #expect(used == file, "Package.resolved is not the lock")
    }

    @Test("Every build and test of a script is of the lock's versions")
    func scripts() throws {
        let scripts = SourceTree.files.filter { $0.path.hasPrefix("scripts/") }
        let setup = try #require(scripts.first { $0.path == "scripts/lib/setup.sh" })
        #expect(setup.text.contains("lock_flags=(--force-resolved-versions)"))
        #expect(setup.lines.contains { $0.hasPrefix("build_flags=(") && $0.contains("${lock_flags[@]}") })
        var builds = 0
        for script in scripts {
            for (index, line) in script.lines.enumerated() {
                let code = line.drop { $0 == " " }
                guard !code.hasPrefix("#"), code.contains("swift build ") || code.contains("swift test ") else {
                    continue
                }
                builds += 1
                // The example app resolves its dependencies as apps of others do.
                if script.path == "scripts/try-sdk", code.contains("\"${app_flags[@]}\"") { continue }
                #expect(
                    code.contains("\"${build_flags[@]}\"") || code.contains("\"${lock_flags[@]}\""),
                    "\(script.path):\(index + 1) builds without the lock")
            }
        }
        #expect(builds > 10, "the scripts build in another way")
    }

    @Test("The package beside the SDK in Examples/App asks for newer patch versions than the manifest does")
    func example() throws {
        let ranges = Self.ranges(of: try Self.manifest())
        let file = SourceTree.files.first { $0.path == "Examples/App/Newer/Package.swift" }
        let newer = Self.ranges(of: try #require(file).text)
        #expect(!newer.isEmpty)
        for (url, from) in newer {
            let ours = try #require(ranges.first { $0.url == url }, "the manifest has no range for \(url)").from
            #expect(
                (from.major, from.minor) == (ours.major, ours.minor) && from.patch > ours.patch,
                "\(url) from \(from) is no newer patch version of \(ours)")
        }
    }

    private static func manifest() throws -> String {
        try #require(SourceTree.files.first { $0.path == "Package.swift" }).text
    }

    /// The dependencies that are ranges, in the order of the manifest, with their lower bounds.
    private static func ranges(of manifest: String) -> [(url: String, from: Version)] {
        manifest.matches(of: /\.package\(url: "([^"]+)", from: "([\d.]+)"/).compactMap { match in
            Version(match.2).map { (String(match.1), $0) }
        }
    }
}
