import ApusConfiguration
import ApusCore
import ApusEvents

/// The language model that a node asks about sentences that are not understood (docs/voice.md).
package struct GuestConfiguration: Sendable, Hashable {
    /// The base of an OpenAI-compatible API, such as `http://127.0.0.1:11434/v1`; empty: there is no model. Key
    /// `dialogs.model_url`.
    package var url = ""
    /// The name of the model. Key `dialogs.model`.
    package var model = ""
    /// A file whose first line is the API key; empty: none. Key `dialogs.model_key_file`.
    package var keyFile = ""
    /// A PEM file with the certificates that `https` is checked against; empty: those of the system. Key
    /// `dialogs.model_authority_file`.
    package var authorityFile = ""
    /// The time that the model may take for a sentence. Key `dialogs.model_time`.
    package var time: Duration = .seconds(4)
    /// The tokens of an answer (`max_tokens`). Key `dialogs.model_tokens_max`.
    package var tokensMax = 256
    /// The requests of a node that wait for the model; of one account at most half. Beyond, the sentence is not
    /// understood. Key `dialogs.models_running_max`.
    package var runningMax = 8

    /// The longest answer, in bytes.
    static let answerByteCountMax = 64 << 10
    /// The longest reply, in bytes. A longer text is cut.
    static let replyByteCountMax = 2 << 10
    /// The longest API key, in bytes.
    static let keyByteCountMax = 4 << 10
    /// The tool calls of one answer. An answer with more is not understood.
    package static let callsMax = 4
    /// The names of devices that the model gets, and their bytes. Further names are left out: first those that are not
    /// the first ones of their devices.
    package static let namesMax = 128
    package static let nameByteCountMax = 4 << 10
    /// The same for names of areas.
    package static let areaNamesMax = 32
    package static let areaByteCountMax = 1 << 10
    /// The age of the oldest sentence that the model gets with a new one, in milliseconds.
    package static let historyTime: Int64 = 600_000
    /// The bytes of these sentences and their replies. The oldest ones are left out beyond.
    package static let historyByteCountMax = 8 << 10

    package init() {}

    /// Reads the keys `dialogs.model…`.
    ///
    /// - Throws: 10022 if a value is not valid.
    mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        url = try reader.string("dialogs.model_url", default: url)
        model = try reader.string("dialogs.model", default: model)
        keyFile = try reader.path("dialogs.model_key_file", default: keyFile)
        authorityFile = try reader.path("dialogs.model_authority_file", default: authorityFile)
        time = try reader.duration("dialogs.model_time", default: time)
        tokensMax = try reader.int("dialogs.model_tokens_max", default: tokensMax, in: 16...4096)
        runningMax = try reader.int("dialogs.models_running_max", default: runningMax, in: 1...1024)
        guard (.milliseconds(200) ... .seconds(30)).contains(time) else {
            throw reader.invalid("dialogs.model_time", "200ms to 30s are expected")
        }
        guard !url.isEmpty else { return }
        guard let parts = HookURL(url), !url.contains("?") else {
            throw reader.invalid("dialogs.model_url", "http://… or https://… without a query is expected")
        }
        guard !model.isEmpty else { throw reader.invalid("dialogs.model", "the name of the model is expected") }
        // A key that crosses a network in plain text is no secret.
        let host = parts.host.filter { $0 != "[" && $0 != "]" }
        let isPrivate = url.hasPrefix("https:") || HostPort(host: host, port: 80).isLoopback
        guard keyFile.isEmpty || isPrivate else {
            throw reader.invalid(
                "dialogs.model_key_file", "a key needs https://… as dialogs.model_url, or a loopback address")
        }
    }

    /// Where chat completions are.
    var endpoint: String { "\(url.hasSuffix("/") ? String(url.dropLast()) : url)/chat/completions" }
}
