import ApusContract
import ApusCore
import ApusDialogs
import Foundation
import SwiftProtobuf
import Testing

@Suite("Sentences of an operator in the layout of home-assistant-intents (docs/voice.md)")
struct UserSentencesTests {
    private static let common = """
        language: en
        lists:
          brightness: {range: {type: percentage, from: 0, to: 100}}
          timer_minutes: {range: {from: 1, to: 100}}
          timer_name: {wildcard: true}
          volume_step: {values: [{in: (up|increase), out: up}, {in: (down|decrease), out: down}]}
          cover_classes: {values: [{in: 'blind[s]', out: blind}, {in: 'gate[s]', out: gate}]}
          lock_states: {values: [locked, unlocked]}
        expansion_rules:
          the: (the|ye)
          turn: (flip|flick)
        skip_words: [kindly]
        """
    private static let sentences = """
        language: "en"
        intents:
          HassTurnOn:
            data:
              - sentences: ["<turn> on [<the>] {name}"]
                requires_context: {domain: [light, switch, climate]}
              - sentences: ["<turn> up [<the>] lights in [<the>] {area}"]
                slots: {domain: light}
              - sentences: ["unseal [<the>] {name}"]
                requires_context: {domain: cover}
              - sentences: ["unseal [<the>] {cover_classes:device_class} in [<the>] {area}"]
                slots: {domain: cover}
          HassTurnOff:
            data:
              - sentences: ["unbolt [<the>] {name}"]
                requires_context: {domain: lock}
              - sentences: ["lights out on [<the>] {floor}", "lights out everywhere"]
                slots: {domain: light}
          HassLightSet:
            data:
              - sentences: ["[<the>] {name} to {brightness}"]
                requires_context: {domain: light}
          HassGetState:
            data:
              - sentences: ["how about [<the>] {name}"]
                requires_context: {domain: lock}
              - sentences: ["how many locks are {lock_states:state}"]
                slots: {domain: lock}
          HassSetVolumeRelative:
            data:
              - sentences: ["sound {volume_step}"]
                requires_context: {area: {slot: true}}
          HassStartTimer:
            data:
              - sentences:
                  - egg for {timer_minutes:minutes}
                  - egg for {timer_minutes:minutes} called {timer_name:name}
          HassVacuumStart:
            data:
              - sentences: ["clean up"]
          TimeGet:
            data:
              - sentences: ["got the clock"]
        """

    private static func folder(_ files: [String: String]) throws -> String {
        let folder = NSTemporaryDirectory() + "sentences-\(UUID().uuidString.prefix(8))"
        for (path, text) in files {
            let file = URL(fileURLWithPath: "\(folder)/\(path)")
            try FileManager.default.createDirectory(
                at: file.deletingLastPathComponent(), withIntermediateDirectories: true)
            try Data(text.utf8).write(to: file)
        }
        return folder
    }

    private static func load(_ files: [String: String], replaced: [String] = []) throws -> UserSentences {
        let folder = try folder(files)
        defer { try? FileManager.default.removeItem(atPath: folder) }
        return try UserSentences(folder: folder, replaced: replaced)
    }

    private static let files = ["en/_common.yaml": common, "en/home.yaml": sentences]

    private static func plan(_ text: String, _ sentences: UserSentences, language: String = "en") throws -> DialogPlan {
        try VoiceHomes.reader(language, sentences: sentences).plan(of: text, answering: nil)
    }

    @Test("Files of a language are one, in files of their own, with rules and lists of their own")
    func extend() throws {
        let user = try Self.load(Self.files)
        #expect(user.counts == ["en": 14] && user.unknownIntents == ["HassVacuumStart"])
        let on = try Self.plan("kindly flip on ye desk lamp", user)
        #expect(on.steps.map(\.what) == ["power"] && on.steps.map(\.json) == ["1"], "\(on)")
        #expect(on.intent == "DeviceOn" && on.sentence == "<turn> on [<the>] {name}")
        // The sentences of Apus have their own rules: "ye" and "flip" are not words of theirs.
        #expect(try Self.plan("turn on the desk lamp", user).steps == on.steps)
        #expect(try Self.plan("turn on ye desk lamp", user).outcome == .notUnderstood)
        #expect(try Self.plan("flip off the desk lamp", user).outcome == .notUnderstood)
        #expect(try Self.plan("what time is it", user).outcome == .done)
        #expect(try Self.plan("kindly flip on ye desk lamp", UserSentences()).outcome == .notUnderstood)
    }

    @Test("Intents of Home Assistant are those of Apus, by the domain that is said or that the things have")
    func intents() throws {
        let user = try Self.load(Self.files)
        func steps(_ text: String) throws -> [String] {
            try Self.plan(text, user).steps.map { "\($0.entry) \($0.what) \($0.json)" }
        }
        #expect(
            try steps("flick up the lights in the hall") == ["lamp power 1", "spot1 power 1"])
        #expect(try steps("unseal the garage gate") == ["gate position 100"])
        #expect(try steps("the desk lamp to forty") == ["lamp brightness 40"])
        #expect(try steps("how about the front door") == ["door lock "])
        #expect(try Self.plan("sound up", user).intent == "VolumeUp")
        #expect(try Self.plan("egg for ten", user).steps.map(\.json) == ["600000"])
        #expect(try Self.plan("got the clock", user).intent == "TimeGet")
        // A name that two things have is asked about, as in other sentences.
        #expect(try Self.plan("flip on the spot", user).outcome == .asked)
        #expect(try Self.plan("lights out everywhere", user).steps.count == 5)
    }

    @Test("What has no meaning here is not guessed: another slot, all locks, a kind that the home may not mean")
    func unresolved() throws {
        let user = try Self.load(Self.files)
        for text in [
            "egg for ten called soft", "how many locks are locked", "unseal the gates in the garage",
            "lights out on the ground", "clean up", "flip on the safe",
        ] {
            let plan = try Self.plan(text, user)
            #expect(plan.outcome == .notUnderstood && plan.steps.isEmpty, "\(text): \(plan)")
        }
    }

    @Test("What lets somebody in is asked about in any words, and what is never done by voice is not")
    func guarded() throws {
        let user = try Self.load(Self.files)
        let unlock = try Self.plan("unbolt the front door", user)
        #expect(unlock.outcome == .asked && unlock.steps.isEmpty && unlock.choices.count == 1, "\(unlock)")
        #expect(unlock.choices.first?.plan.steps.map(\.json) == ["0"])
        #expect(try Self.plan("unseal the garage door", user).outcome == .asked)
        let safe = try Self.plan("unbolt the safe", user)
        #expect(safe.outcome == .refused && safe.steps.isEmpty, "\(safe)")
    }

    @Test("A language that is replaced has the sentences of the folder, and the answers to questions")
    func replace() throws {
        let user = try Self.load(Self.files, replaced: ["en"])
        #expect(try Self.plan("turn on the desk lamp", user).outcome == .notUnderstood)
        #expect(try Self.plan("flip on the desk lamp", user).steps.count == 1)
        #expect(try Self.plan("yes", user).intent == "Yes" && Self.plan("never mind", user).intent == "Cancel")
        let reader = try VoiceHomes.reader(sentences: user)
        let asked = reader.plan(of: "unbolt the front door", answering: nil)
        let question = DialogQuestion.with { $0.choices = asked.choices }
        #expect(reader.plan(of: "yes", answering: question).steps.map(\.json) == ["0"])
        // The other language is as before.
        #expect(try Self.plan("打开台灯", user, language: "zh").steps.count == 1)
        #expect(throws: ApusError.self) { try Self.load(Self.files, replaced: ["zh"]) }
    }

    @Test("Files that are not valid are refused with their name and the place")
    func errors() throws {
        func refused(_ files: [String: String], _ words: String..., sourceLocation: SourceLocation = #_sourceLocation) {
            do {
                _ = try Self.load(files)
                Issue.record("not refused", sourceLocation: sourceLocation)
            } catch {
                let error = error as? ApusError
                #expect(error?.code == .configurationInvalid, sourceLocation: sourceLocation)
                for word in words {
                    #expect(error?.message.contains(word) == true, "\(error as Any)", sourceLocation: sourceLocation)
                }
            }
        }
        let head = "language: en\nintents:\n  HassTurnOn:\n    data:\n      - sentences: ["
        refused(["en/a.yaml": head + "'turn on {nam}']"], "HassTurnOn", "the list {nam} is unknown")
        refused(["en/a.yaml": head + "'turn (on']"], "en", "turn (on")
        refused(["en/a.yaml": "intents: {}"], "a.yaml", "'language' is missing")
        refused(["en/a.yaml": "language: de\nintents: {}"], "a.yaml", "its language is de")
        refused(["en/a.yaml": "language: [\n"], "a.yaml", "not valid YAML")
        refused(["de/a.yaml": "language: de"], "LANGUAGE/NAME.yaml")
        refused(["en/a.yaml": head + "'<a>']\nexpansion_rules: {a: <b>, b: <a>}"], "reaches itself")
        // Alternations that explode, and too many sentences, with their number.
        let wide = (0..<8).map { _ in "(" + (0..<20).map { "w\($0)" }.joined(separator: "|") + ")" }.joined(
            separator: " ")
        refused(["en/a.yaml": head + "'\(wide)']"], "25600000000 forms")
        let many = (0..<20_001).map { "'turn \($0)'" }.joined(separator: ", ")
        refused(["en/a.yaml": head + many + "]"], "sentences, and at most 20000 are allowed")
        let large = String(repeating: "# comment\n", count: 220_000)
        refused(["en/a.yaml": "language: en\n" + large], "a.yaml", "more than 2 MiB")
        let files = (0...512).map { ("en/\($0).yaml", "language: en") }
        refused(Dictionary(uniqueKeysWithValues: files), "at most 512 files")
        #expect(throws: ApusError.self) { try UserSentences(folder: "/nonexistent", replaced: []) }
    }
}
