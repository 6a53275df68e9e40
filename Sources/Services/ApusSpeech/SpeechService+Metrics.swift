package import ApusCore

extension SpeechService {
    package static let metrics: [MetricDescription] = [
        .counter(
            "apus_speech_utterances_total", "utterances",
            [.init("end", "`sentence`, `silence`, `steady`, `tooLong`, `nothing` or `microphone`")],
            "Utterances that were heard, by how their end was found."),
        .counter(
            "apus_speech_interruptions_total", "interruptions", [.init("outcome", "`words`, `noWords` or `echo`")],
            "Sounds of a person while a reply was spoken, by what was heard."),
        .counter("apus_speech_provider_failures_total", "failures", "Failures of speech providers."),
        .gauge("apus_speech_providers_up", "providers", "Speech providers that have answered this node."),
        .gauge("apus_speech_running", "devices", "Devices that this node listens to at the moment."),
    ]
}
