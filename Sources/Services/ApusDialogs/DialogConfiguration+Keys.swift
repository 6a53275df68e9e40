import ApusClientAPI
package import ApusConfiguration
package import ApusCore

extension DialogConfiguration: ServiceConfiguration {
    /// Reads the keys under `dialogs.`.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        sentencesPerMinute = try reader.int(
            "dialogs.sentences_per_minute", default: sentencesPerMinute, in: 1...60_000)
        runningMax = try reader.int("dialogs.running_max", default: runningMax, in: 1...100_000)
        accountRunningMax = try reader.int(
            "dialogs.account_running_max", default: accountRunningMax, in: 1...100_000)
        listeningTime = try reader.duration("dialogs.listening_time", default: listeningTime)
        arbitrationWindow = try reader.duration("dialogs.arbitration_window", default: arbitrationWindow)
        thinkingTime = try reader.duration("dialogs.thinking_time", default: thinkingTime)
        confirmTime = try reader.duration("dialogs.confirm_time", default: confirmTime)
        questionTime = try reader.duration("dialogs.question_time", default: questionTime)
        historyTime = try reader.duration("dialogs.history_time", default: historyTime)
        templates = try reader.path("dialogs.templates", default: templates)
        replacedLanguages = try reader.values(
            "dialogs.templates_replace", countMax: DialogLanguage.allCases.count,
            { (try? DialogLanguage(checking: $0)) == nil ? nil : $0 }
        ) { word in "a language of dialogs, en or zh, is expected, not '\(word)'" }
        guard replacedLanguages.isEmpty || !templates.isEmpty else {
            throw reader.invalid("dialogs.templates_replace", "it needs dialogs.templates")
        }
        try guest.read(&reader)
        guard (.seconds(3) ... .seconds(60)).contains(thinkingTime), (.zero...thinkingTime / 2).contains(confirmTime),
            (.seconds(5) ... .seconds(600)).contains(questionTime),
            (questionTime ... .seconds(86_400)).contains(historyTime)
        else {
            throw reader.invalid(
                "dialogs.thinking_time",
                """
                3s to 1m is expected; confirm_time: at most half of it; question_time: 5s to 10m; history_time: at \
                most 24h
                """
            )
        }
        guard guest.url.isEmpty || guest.time <= thinkingTime - .seconds(1) else {
            throw reader.invalid("dialogs.model_time", "a second less than thinking_time is the most")
        }
        guard (.seconds(2) ... .seconds(60)).contains(listeningTime) else {
            throw reader.invalid("dialogs.listening_time", "2s to 1m is expected")
        }
        guard (.zero ... .seconds(1)).contains(arbitrationWindow) else {
            throw reader.invalid("dialogs.arbitration_window", "at most 1s is expected")
        }
    }
}
