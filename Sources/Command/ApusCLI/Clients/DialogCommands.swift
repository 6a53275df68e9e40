import ApusClient
import ApusContract
import ApusCore
import ArgumentParser
import Foundation
import SwiftProtobuf

// `apus say` and `apus voice`: dialogs with devices, and what they are called (VA-6 to VA-9, docs/voice.md).

/// `apus say DEVICE [SENTENCE]`
struct SayCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "say", abstract: "Say a sentence to a device, and print the reply.",
        discussion: """
            Without a sentence, each line of the input is one. Questions are answered that way: only the session that \
            was asked can answer.
            """)
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The sentence, such as \"turn on the hall light\".") var sentence: [String] = []
    @Option(help: "The language, such as en or zh-CN. Default: that of the home.") var language: String?
    @Option(help: "Set the sentence's id: 32 hexadecimal digits. Saying an id again has no further effect.")
    var id: String?
    @Flag(help: "Also print what was understood, and what was asked of devices.") var explain = false

    func validate() throws {
        guard id == nil || !sentence.isEmpty else { throw ValidationError("--id is of one sentence.") }
    }

    func run() async throws {
        let text = sentence.joined(separator: " ")
        try await options.run { [output = options.output, language, id, explain] session, device throws(ApusError) in
            func say(_ text: String) async throws(ApusError) {
                let turn = try await session.say(text, to: device, language: language, id: id)
                try output.show(JSONText(turn.json()), [turn.reply] + (explain ? turn.explanation : []))
            }
            guard text.isEmpty else { return try await say(text) }
            while let line = readLine() {
                if !line.allSatisfy(\.isWhitespace) { try await say(line) }
            }
        }
    }
}

extension ClientDialogTurn {
    /// What was understood, and what was asked of devices.
    fileprivate var explanation: [String] {
        var lines = [intent.isEmpty ? "understood: nothing" : "understood: \(intent)"]
        lines += slots.map { "  \($0.name): \($0.value)" + ($0.text.isEmpty ? "" : " (\"\($0.text)\")") }
        if !sentence.isEmpty { lines.append("template: \(sentence)") }
        lines += steps.map { step in
            let reason = step.code == 0 ? "" : ": \(step.code) \(step.message)"
            return "\(step.device) \(step.path) \(step.json): \(step.result)\(reason)"
        }
        return lines + ["outcome: \(outcome), after \(endedMs - beganMs) ms"]
    }
}

/// `apus voice`
struct VoiceCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "voice",
        abstract: "Show and change what an account's devices are called, and what was said to them.",
        subcommands: [VoiceHomeShow.self, VoiceHomePut.self, VoiceLog.self, VoiceStop.self])
}

/// `apus voice home`
struct VoiceHomeShow: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "home", abstract: "Print the names of the account's devices and areas, as JSON.")
    @OptionGroup var session: SessionOptions

    func run() async throws {
        try await session.run { [output = session.output] session throws(ApusError) in
            let json = try await session.voiceHome().json()
            try output.show(JSONText(json), [json])
        }
    }
}

/// `apus voice put FILE`
struct VoiceHomePut: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "put", abstract: "Set the names of the account's devices and areas.",
        discussion: "The file has what `apus voice home` prints. A revision in it must be the one that the home has.")
    @OptionGroup var session: SessionOptions
    @Argument(help: "A file with JSON.") var file: String

    func run() async throws {
        guard let content = FileManager.default.contents(atPath: file) else {
            throw ApusError(.storageFailed, "\(file) cannot be read")
        }
        let home: ClientVoiceHome
        do {
            home = try ClientVoiceHome(jsonUTF8Data: content)
        } catch {
            throw ApusError(.badParameter, "\(file) is not a home: \(error)")
        }
        try await session.run { [output = session.output] session throws(ApusError) in
            let written = try await session.setVoiceHome(home, ifRevision: home.revision == 0 ? nil : home.revision)
            try output.show(
                ["revision": written.revision],
                ["\(written.devices.count) devices in \(written.areas.count) areas, revision \(written.revision)."])
        }
    }
}

/// `apus voice log DEVICE`
struct VoiceLog: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "log", abstract: "Print what was said to a device in the last minutes, and the replies.")
    @OptionGroup var options: PropertyOptions

    func run() async throws {
        try await options.run { [output = options.output] session, device throws(ApusError) in
            let dialog = try await session.dialog(of: device)
            let lines = dialog.turns.reversed().flatMap { ["> \($0.text)", $0.reply] }
            try output.show(JSONText(dialog.json()), lines.isEmpty ? ["Nothing was said."] : lines)
        }
    }
}

/// `apus voice stop DEVICE`
struct VoiceStop: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "stop", abstract: "End what the dialog of a device does.")
    @OptionGroup var options: PropertyOptions

    func run() async throws {
        try await options.run { [output = options.output] session, device throws(ApusError) in
            let dialog = try await session.stopDialog(of: device)
            try output.show(JSONText(dialog.json()), ["\(dialog.phase)"])
        }
    }
}

extension SwiftProtobuf.Message {
    /// As the cluster's API has it.
    fileprivate func json() throws(ApusError) -> String {
        guard let text = try? jsonString() else { throw ApusError(.internalFailure) }
        return text
    }
}
