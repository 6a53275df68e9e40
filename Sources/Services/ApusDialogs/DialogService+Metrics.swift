package import ApusCore

extension DialogService {
    package static let metrics: [MetricDescription] = [
        .counter(
            "apus_dialog_sentences_total", "sentences",
            [.init("result", "`understood` or `not_understood`")],
            "Sentences that were said to devices, by whether they were understood."),
        .counter(
            "apus_dialog_wakes_total", "wakes",
            [.init("result", "`won`, `lost`, `yielded` to a louder device that was late, or `alone` without the room")],
            "Wake phrases that devices have heard, by whether the device listens."),
        .counter(
            "apus_dialog_interceptions_total", "requests", [.init("result", "`answered` or `failed`")],
            "Requests to servers that see sentences and replies (`before` and `after` of a home)."),
        .counter(
            "apus_dialog_model_requests_total", "sentences",
            [
                .init(
                    "result",
                    "`answered`, `failed`, `late` (`dialogs.model_time`), `full` (`dialogs.models_running_max`), or "
                        + "`paused` after failures")
            ],
            "Sentences for the language model, by whether it has answered."),
        .gauge(
            "apus_dialog_model_requests_running", "requests",
            "Requests of this node that wait for the language model."),
        .gauge("apus_dialogs_running", "sentences", "Sentences that this node carries out at the moment."),
    ]
}
