import ApusConfiguration
import ApusCore
import ApusDialogs
import Testing

@Suite("The keys of the language model (VA, docs/voice.md)")
struct GuestConfigurationTests {
    private static func read(_ lines: String...) throws -> GuestConfiguration {
        let yaml = "dialogs:\n" + lines.map { "  \($0)\n" }.joined()
        var reader = try ConfigurationReader(yaml: yaml, source: "node.yaml", folder: "/etc/apus", environment: [:])
        var configuration = DialogConfiguration()
        try configuration.read(&reader)
        try reader.finish()
        return configuration.guest
    }

    @Test("Without a URL there is no model; with one, it has a name, and relative files are beside the configuration")
    func valid() throws {
        #expect(try Self.read("thinking_time: 3s", "confirm_time: 1s") == GuestConfiguration())
        let read = try Self.read(
            "model_url: http://127.0.0.1:11434/v1", "model: small", "model_key_file: model.key", "model_time: 1s",
            "model_tokens_max: 64", "models_running_max: 2")
        #expect(read.url == "http://127.0.0.1:11434/v1" && read.model == "small" && read.time == .seconds(1))
        #expect(read.keyFile == "/etc/apus/model.key" && read.tokensMax == 64 && read.runningMax == 2)
        for url in ["https://api.example.com/v1", "http://[::1]:8080/v1", "http://localhost"] {
            #expect(try Self.read("model_url: \"\(url)\"", "model: m", "model_key_file: k").url == url)
        }
        #expect(try Self.read("model_url: http://models.example:8000/v1", "model: m").keyFile.isEmpty)
    }

    static let refused = [
        ["model_url: ftp://127.0.0.1/v1", "model: m"], ["model_url: http://me:secret@127.0.0.1/v1", "model: m"],
        ["model_url: http://127.0.0.1/v1?key=1", "model: m"], ["model_url: http://127.0.0.1/v1"],
        // The key would cross a network in plain text.
        ["model_url: http://models.example/v1", "model: m", "model_key_file: k"],
        ["model_url: http://127.0.0.1.example.com/v1", "model: m", "model_key_file: k"],
        ["model_url: http://127.0.0.1/v1", "model: m", "model_time: 3s", "thinking_time: 3s", "confirm_time: 1s"],
        ["model_time: 100ms"], ["model_tokens_max: 0"], ["models_running_max: 0"],
    ]

    @Test("Values that are not valid are refused with the name of the key", arguments: refused)
    func invalid(lines: [String]) {
        let yaml = "dialogs:\n" + lines.map { "  \($0)\n" }.joined()
        var configuration = DialogConfiguration()
        #expect {
            var reader = try ConfigurationReader(yaml: yaml, source: "node.yaml", environment: [:])
            try configuration.read(&reader)
        } throws: { error in
            let error = error as? ApusError
            return error?.code == .configurationInvalid && error?.message.contains("dialogs.model") ?? false
        }
    }
}
