import ApusCore
import ApusProvider
import ApusSphinx
import ApusWyoming
import ArgumentParser
import Logging
import UnixSignals

/// `apus provider`: recognizes and speaks for nodes, until SIGTERM or SIGINT (docs/voice.md).
struct ProviderCommand: AsyncParsableCommand {
    /// EX_TEMPFAIL of sysexits.h: a supervisor should start the provider again.
    static let replacedCode: Int32 = 75

    static let configuration = CommandConfiguration(
        commandName: "provider", abstract: "Run a speech provider: a Wyoming server with built-in engines.",
        discussion: """
            The provider recognizes sentences of a grammar with PocketSphinx, and speaks with eSpeak NG. Debian has \
            both: libpocketsphinx3, pocketsphinx-en-us and espeak-ng. It ends with code \(replacedCode) when \
            --utterances-max or --memory-max is reached, after what is running; a supervisor should start it again.
            """)

    @Option(help: "Listen at unix:PATH or tcp:HOST:PORT; HOST is a loopback address.")
    var listen: String

    @Flag(help: "Do not recognize.") var noRecognition = false
    @Flag(help: "Do not speak.") var noSpeech = false

    @Option(help: "Read the acoustic model from this folder.")
    var model = "/usr/share/pocketsphinx/model/en-us/en-us"

    @Option(help: "Read the pronunciations of words from this file.")
    var dictionary = "/usr/share/pocketsphinx/model/en-us/cmudict-en-us.dict"

    @Option(help: "Speak, and pronounce unknown words, with this program.")
    var espeak = "/usr/bin/espeak-ng"

    @Option(help: "Recognize this many utterances at once, 1 to 256.")
    var utterances = ProviderLimits().utterancesRunningMax

    @Option(help: "Let this many utterances wait; one more is refused with apus-busy.")
    var utterancesWaiting = ProviderLimits().utterancesWaitingMax

    @Option(help: "Accept this many connections.")
    var connectionsMax = ProviderLimits().connectionsMax

    @Option(help: "End after this many utterances. 0: never.")
    var utterancesMax = ProviderLimits().utterancesMax

    @Option(help: "End after an utterance if more than this many MiB are resident. 0: never.")
    var memoryMax = ProviderLimits().memoryMax

    @Option(help: "Log from this level on: trace, debug, info, notice, warning or error.")
    var logLevel = "info"

    func validate() throws {
        guard !(noRecognition && noSpeech) else { throw ValidationError("a provider without engines has no use") }
        guard (1...256).contains(utterances), (0...1024).contains(utterancesWaiting),
            (1...4096).contains(connectionsMax), utterancesMax >= 0, memoryMax >= 0
        else { throw ValidationError("a bound is out of range") }
    }

    func run() async throws {
        LoggingSystem.bootstrap { EscapingLogHandler(StreamLogHandler.standardError(label: $0)) }
        var log = Logger(label: "apus.provider")
        log.logLevel = Logger.Level(rawValue: logLevel) ?? .info
        var limits = ProviderLimits()
        (limits.utterancesRunningMax, limits.utterancesWaitingMax) = (utterances, utterancesWaiting)
        (limits.connectionsMax, limits.utterancesMax, limits.memoryMax) = (connectionsMax, utterancesMax, memoryMax)
        let address = try WyomingAddress(listen)
        let speech = noSpeech ? nil : try SpeechEngine(program: espeak)
        let recognition =
            noRecognition
            ? nil
            : try RecognitionEngine(
                library: SphinxLibrary(), model: model,
                pronunciations: Pronunciations(dictionary: dictionary, espeak: espeak), idleMax: utterances)
        let provider = try await Provider(
            address, recognition: recognition, speech: speech, limits: limits, log: log)
        log.notice("The provider listens", metadata: ["address": "\(provider.address)"])
        let isWorn = await withTaskGroup(of: Bool?.self) { group in
            group.addTask { await provider.run() }
            group.addTask {
                for await _ in await UnixSignalsSequence(trapping: .sigterm, .sigint) { provider.stop() }
                return nil
            }
            var isWorn = false
            while let result = await group.next() {
                guard let result else { continue }
                isWorn = result
                group.cancelAll()
            }
            return isWorn
        }
        if isWorn { throw ExitCode(Self.replacedCode) }
    }
}
