import ApusCore
import Foundation

/// The requirements of devices, accounts, messages, calls and voice, with the tests whose names cite them.
enum Requirements {
    struct Row {
        let id: String
        let text: String
        /// It is not built, so no test cites it.
        let isMissing: Bool

        init(_ id: String, _ text: String, isMissing: Bool = false) {
            (self.id, self.text, self.isMissing) = (id, text, isMissing)
        }
    }

    struct Test {
        let suite: String
        let name: String
        /// The ids that the name cites.
        let citations: [Citation]

        init(suite: String, name: String) {
            (self.suite, self.name) = (suite, name)
            citations = Citation.all(in: name)
        }
    }

    /// An id in the name of a test, or a range of ids such as `IV-D1 to IV-D10`.
    struct Citation {
        let section: String
        let numbers: ClosedRange<Int>

        /// A regular expression of many names takes seconds, so those without an id are left out first.
        static func all(in name: String) -> [Self] {
            guard name.contains("IV-") || name.contains("CALL-") || name.contains("VA-") else { return [] }
            let ids = /(IV-[A-G]|CALL-|VA-)([0-9]+)(?: to (?:IV-[A-G]|CALL-|VA-)([0-9]+))?/
            return name.matches(of: ids).compactMap { match in
                guard let first = Int(match.2) else { return nil }
                let last = match.3.flatMap { Int($0) } ?? first
                return last < first ? nil : Self(section: String(match.1), numbers: first...last)
            }
        }

        func covers(_ other: Self) -> Bool { section == other.section && numbers.contains(other.numbers.lowerBound) }
    }

    static let rows = [
        Row("IV-A1", "an integrator registers an end user, who receives an access id"),
        Row("IV-A2", "an access token expires and can be revoked"),
        Row("IV-A3", "access for a time, to some devices, or for one use"),
        Row("IV-A4", "the SDK is set up with options, a delegate and a log level"),
        Row("IV-A5", "link states: online, offline, token failed, kicked"),
        Row("IV-A6", "operations are checked against the token"),
        Row("IV-A7", "offline recovers by itself, a kick by registering again"),
        Row("IV-B8", "bind a device to a user of its customer"),
        Row("IV-B9", "subscribe to a device's state and events"),
        Row("IV-B10", "unbind, share and transfer a device"),
        Row("IV-C5", "what a device has recorded is played, with pause, resume and another time"),
        Row("IV-C6", "a playback is prepared, so that it begins sooner"),
        Row("IV-C7", "talk on and off"),
        Row("IV-C8", "the camera is opened, switched and closed; video in both directions"),
        Row("IV-C12", "record while playing"),
        Row("IV-C16", "the numbers between apps and devices"),
        Row("IV-D1", "the model has four roots"),
        Row("IV-D2", "the shape of a leaf"),
        Row("IV-D3", "read a property, or the whole model"),
        Row("IV-D4", "write a property in two forms"),
        Row("IV-D5", "an action and its answer"),
        Row("IV-D6", "add a user property"),
        Row("IV-D7", "delete a user property"),
        Row("IV-D8", "change a user property"),
        Row("IV-D9", "online, offline and asleep"),
        Row("IV-D10", "events and property updates, once for each subscriber"),
        Row("IV-D11", "raw data to a device, with and without an answer"),
        Row("IV-D12", "raw data to a server"),
        Row("IV-D13", "the same message while one is in flight"),
        Row("IV-D14", "writes over the local network"),
        Row("IV-D15", "ids, acknowledgements and repetitions of commands"),
        Row("IV-E1", "a query for new firmware"),
        Row("VA-1", "the client of a voice device is set up with a chain of functions"),
        Row("VA-2", "a local database of the token, the settings and the alarms"),
        Row("VA-3", "a person authorizes a device with a code"),
        Row("VA-4", "four states of the authorization"),
        Row("VA-5", "connect, disconnect, reconnect, reset"),
        Row("CALL-1", "whether a device has two-way video"),
        Row("CALL-2", "an interface manager is registered; −2504 without one"),
        Row("CALL-3", "what a call says of itself; flags change once"),
        Row("CALL-4", "three types of calls"),
        Row("CALL-5", "one call at a time; busy"),
        Row("CALL-6", "place a call with a time-out and parameters"),
        Row("CALL-7", "the caller learns that the called party rings"),
        Row("CALL-8", "accept, reject, cancel, hang up, connected, exception"),
        Row("CALL-9", "invalid calls are reported, and not shown"),
        Row("CALL-10", "a call comes over the connection and by push, and rings once"),
        Row("CALL-11", "the event message"),
        Row("CALL-12", "the interface protocol and the action executor"),
        Row("CALL-13", "media in both directions; its failures"),
        Row("CALL-14", "network changes and the background end a call"),
        Row("CALL-15", "the numbers of calls"),
        Row("CALL-16", "the media are kept after the call"),
        Row("VA-6", "the states of a dialog and of its connection"),
        Row("VA-7", "a tap starts listening, and interrupts"),
        Row("VA-8", "a wake phrase; the loudest device of a room listens"),
        Row("VA-9", "a stop ends whatever the dialog does"),
        Row("VA-10", "directives, of integrators too"),
        Row("VA-11", "custom events"),
        Row("VA-12", "a context is sent along with an event only"),
        Row("VA-13", "what became of an upload: thirteen states"),
        Row("VA-14", "an error of the audio source, and a log of directives"),
        Row("VA-15", "the state is synchronized before events are allowed"),
        Row("VA-16", "the SDK needs no global initialization"),
    ]

    /// The numbers of the contract (IV-F1), and those that no request, device or SDK raises yet.
    static let numbers: [Int32] = [
        8000, 8002, 8003, 8022, 8023, 8024, 8605, 20_001, 20_002, 20_003, 20_004, 20_005, 20_006, 20_007, 20_008,
        20_009, 20_010, 20_011, 20_012, 20_100, 20_101, 20_102, 20_103, 20_104, 20_105, 21_000, 21_001, 21_002, 21_003,
        21_004, 21_005, 21_006, 21_007, 21_008, 21_020, 21_021, 21_022, 21_023, 21_024, 21_025, 21_030, 21_031, 21_032,
        21_033, 21_034, 21_035, 21_036, 21_037,
    ]

    /// The numbers of calls (CALL-15).
    static let callNumbers: [Int32] = [
        -2500, -2501, -2502, -2503, -2504, -2508, -2510, -2511, -2512, -2513, -2520, -2521, -2522, -2523, -2530, -2531,
        -2532, -2533, -2570, -2571,
    ]

    /// The tests of the repository, in the order of files.
    static let tests: [Test] = SourceTree.files.filter { $0.path.hasPrefix("Tests/") && $0.isSwift }.flatMap { file in
        file.text.matches(of: /@(?:Test|Suite)\(\s*"((?:[^"\\]|\\.)*)"/).map { match in
            Test(suite: String(file.name.dropLast(".swift".count)), name: String(match.1))
        }
    }

    /// The tests that cite an id, by itself or in a range.
    static func tests(citing id: String) -> [Test] {
        guard let wanted = Citation.all(in: id).first else { return [] }
        return tests.filter { test in test.citations.contains { $0.covers(wanted) } }
    }

    static func cites(_ name: String, _ id: String) -> Bool {
        guard let wanted = Citation.all(in: id).first else { return false }
        return Citation.all(in: name).contains { $0.covers(wanted) }
    }

    /// The number is raised, and by whom.
    static func isRaised(_ number: Int32) -> Bool {
        ErrorCode.explanations.contains { $0.code.number == number && $0.receivers != [.nobody] }
    }

    /// The suites of end-to-end tests that expect the number: by its name in the code, or as it is printed.
    static func suites(expecting number: Int32) -> [String] {
        let name = ErrorCode.explanations.first { $0.code.number == number }?.name ?? ""
        let texts = [".\(name)", "\(number)", "\(number)".replacing("-", with: "−")]
        return SourceTree.files.filter { file in
            file.path.hasPrefix("Tests/ClusterTests/") && file.isSwift
                && texts.contains { text in
                    file.text.ranges(of: text).contains { range in
                        let next = file.text[range.upperBound...].first
                        return !(next?.isLetter ?? false) && !(next?.isNumber ?? false)
                    }
                }
        }.map { String($0.name.dropLast(".swift".count)) }.filter { $0.hasSuffix("Tests") }.sorted()
    }

    static func document() -> String {
        let table = ReferenceDocument.table(
            ["id", "requirement", "tests"],
            rows.map { row in
                let found = tests(citing: row.id).map { "\($0.suite): \($0.name)" }.sorted()
                return [row.id, row.text, found.isEmpty ? "not built" : found.joined(separator: "<br>")]
            })
        let missing = numbers.filter { !isRaised($0) }
        let missingOfCalls = callNumbers.filter { !isRaised($0) }
        return """
            # Requirements and their tests

            The requirements of devices, accounts, messages, calls and voice, and the tests whose names cite them.
            `scripts/test` runs the tests, and a tidy test fails if a requirement that is built has none.
            `scripts/reference` makes this page.

            \(table)
            ## Numbers

            \(numbers.count - missing.count) of the \(numbers.count) numbers of the contract and
            \(callNumbers.count - missingOfCalls.count) of the \(callNumbers.count) numbers of calls are raised, as
            [errors.md](errors.md) says.\(others(missing + missingOfCalls)) These suites of tests with real clusters
            expect them:

            \(numberTable)

            """
    }

    private static var numberTable: String {
        ReferenceDocument.table(
            ["number", "meaning", "suites"],
            (numbers + callNumbers).map { number in
                let suites = suites(expecting: number).joined(separator: ", ")
                return ["\(number)", ErrorCode(number: number).summary, suites.isEmpty ? "none" : suites]
            })
    }

    private static func others(_ numbers: [Int32]) -> String {
        numbers.isEmpty ? "" : " Not raised: \(numbers.map { "\($0)" }.joined(separator: ", "))."
    }
}
