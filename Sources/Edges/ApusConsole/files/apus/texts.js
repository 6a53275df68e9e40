// The texts of <apus-player>, in English and Simplified Chinese.

/** @type {Record<string, [en: string, zh: string]>} */
export const playerTexts = {
    connecting: ["Connecting…", "正在连接…"],
    waiting: ["No picture yet. The camera is offline or not sending.", "暂无画面。摄像机离线或未发送画面。"],
    moving: ["Continuing at another node…", "正在切换到另一个节点…"],
    offline: ["No node can be reached. Trying again…", "无法连接任何节点，正在重试…"],
    signedOut: ["Sign in to watch.", "请登录后观看。"],
    replaced: ["This sign-in is used elsewhere.", "此登录已在其他地方使用。"],
    paused: ["Paused", "已暂停"],
    queued: ["Waiting: {count} pictures play already", "等待中：已有 {count} 个画面在播放"],
    ended: ["Ended: {reason}", "已结束：{reason}"],
    unsupported: ["This browser cannot decode {codec}.", "此浏览器无法解码 {codec}。"],
    noPicture: ["Sound only: the stream has no picture.", "仅有声音：此流没有画面。"],
    webcodecs: ["WebCodecs", "WebCodecs"],
    mse: ["MSE", "MSE"],
    mseInsecure: ["MSE, as WebCodecs needs https", "MSE（WebCodecs 需要 https）"],
    mseMissing: ["MSE, as this browser has no WebCodecs", "MSE（此浏览器不支持 WebCodecs）"],
    mseCodec: ["MSE, as WebCodecs does not decode {codec} here", "MSE（WebCodecs 无法解码 {codec}）"],
    mseFailed: ["MSE, as the decoder failed", "MSE（解码器出错）"],
    stills: ["Stills, as this browser plays no live {codec}", "静态图片（此浏览器无法实时播放 {codec}）"],
    stillsFailed: ["Stills, as the decoders failed", "静态图片（解码器出错）"],
    stillsChosen: ["Stills", "静态图片"],
    chosen: ["as chosen", "手动选择"],
    fps: ["{value} fps", "{value} 帧/秒"],
    delay: ["delay {value} ms", "延迟 {value} 毫秒"],
    buffer: ["buffer {value} ms", "缓冲 {value} 毫秒"],
    skipped: ["{value} skipped", "跳过 {value} 帧"],
    noSound: ["no sound: {codec}", "无法播放声音：{codec}"],
    play: ["Play", "播放"],
    pause: ["Pause", "暂停"],
    mute: ["Turn sound off", "关闭声音"],
    unmute: ["Turn sound on", "打开声音"],
    snapshot: ["Save a picture", "保存图片"],
    pip: ["Picture in picture", "画中画"],
    fullscreen: ["Full screen", "全屏"],
    leaveFullscreen: ["Leave full screen", "退出全屏"],
    soundRefused: ["The browser does not allow sound yet. Press again.", "浏览器尚未允许播放声音，请再按一次。"],
    live: ["Live picture of {name}", "{name} 的实时画面"],
    controls: ["Controls of the picture", "画面控制"],
};

/**
 * @param {Record<string, string[]>} table
 * @param {string} key
 * @param {string} language
 * @param {Record<string, string | number>} [values]
 */
export function textOf(table, key, language, values = {}) {
    const entry = table[key];
    const text = entry ? entry[language.startsWith("zh") ? 1 : 0] : key;
    return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}
