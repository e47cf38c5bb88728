package main

import (
	"encoding/json"
	"fmt"
	"go/build"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// sampleTexts returns texts to count of about size bytes each, by kind, always
// the same: English and code from the Go source tree, the others made up.
func sampleTexts(size int) (map[string]string, error) {
	english, err := sourceFiles(size, "testdata/Isaac.Newton-Opticks.txt")
	if err != nil {
		return nil, err
	}
	code, err := sourceFiles(size, "net/http/*.go")
	if err != nil {
		return nil, err
	}
	texts := map[string]string{
		"English":  english,
		"code":     code,
		"JSON":     toolCalls(size),
		"Chinese":  clauses(size, chineseWords, []string{"，", "，", "。", "、", "；", "\n"}),
		"Japanese": clauses(size, japaneseWords, []string{"、", "、", "。", "。\n", "「", "」"}),
	}
	return texts, nil
}

// mixedText returns size bytes of the texts by turns of 4 KB: three quarters
// English, code and JSON, one eighth each Chinese and Japanese.
func mixedText(texts map[string]string, size int) string {
	kinds := []string{"English", "code", "JSON", "Chinese", "English", "code", "JSON", "Japanese"}
	var mixed strings.Builder
	for i := 0; mixed.Len() < size; i++ {
		text := texts[kinds[i%len(kinds)]]
		at := i / len(kinds) * 4 * KB % max(1, len(text)-4*KB)
		mixed.WriteString(strings.ToValidUTF8(text[at:min(at+4*KB, len(text))], ""))
	}
	return mixed.String()
}

// sourceFiles returns size bytes of the files of the Go source tree that match
// pattern, from the first again where they end.
func sourceFiles(size int, pattern string) (string, error) {
	root := filepath.Join(build.Default.GOROOT, "src")
	names, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil || len(names) == 0 {
		return "", fmt.Errorf("finding sample texts: no %s in %s", pattern, root)
	}
	var text strings.Builder
	for i := 0; text.Len() < size; i++ {
		b, err := os.ReadFile(names[i%len(names)])
		if err != nil {
			return "", fmt.Errorf("reading sample texts: %w", err)
		}
		text.Write(b)
	}
	return strings.ToValidUTF8(text.String()[:size], ""), nil
}

// toolCalls returns tool calls in JSON, their arguments JSON in a string.
func toolCalls(size int) string {
	r := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("invoice customer shipment refund ticket priority region warehouse status pending contact order note retry")
	word := func() string { return words[r.IntN(len(words))] }
	var text strings.Builder
	for text.Len() < size {
		arguments, err := json.Marshal(map[string]any{
			word(): word() + " " + word(), "id": r.IntN(1e6), "amount": float64(r.IntN(1e5)) / 100, "tags": []string{word(), word()},
			word() + "_at": fmt.Sprintf("2026-%02d-%02dT%02d:00:00Z", r.IntN(12)+1, r.IntN(28)+1, r.IntN(24)),
		})
		if err != nil {
			panic(err) // a map of strings and numbers has a form in JSON
		}
		fmt.Fprintf(&text, `{"id":"call_%x","type":"function","function":{"name":"%s_%s","arguments":%q}},`+"\n", r.Uint64(), word(), word(), arguments)
	}
	return text.String()[:size]
}

// Words for made-up clauses, the commoner the earlier.
const (
	chineseWords  = "的 是 在 了 我们 一个 可以 这个 系统 用户 数据 需要 如果 请求 处理 时间 问题 进行 信息 服务 没有 使用 公司 工作 中国 通过 以及 因为 所以 已经 订单 客户 支付 退款 地址 确认 发送 邮件 联系 电话 分析 报告 结果 模型 回答 内容 文件 上传 下载 更新 删除 添加 设置 管理 权限 登录 密码 账户 注册 北京 上海 市场 经济 发展 技术 研究 学校 学生 老师 朋友 今天 明天 昨天 小时 分钟 价格 便宜 质量 产品 设计 开发 测试 环境 运行 错误 日志 检查 修复 版本 发布 团队 项目 计划 目标 完成 开始 结束 继续 停止 凤凰 蜻蜓 琵琶 徘徊"
	japaneseWords = "の に は を が と で て した して です ます から まで も この その ある いる こと もの ため よう データ システム ユーザー 使用 処理 時間 場合 お客様 注文 確認 送信 メール 連絡 電話 会社 日本 東京 今日 明日 昨日 情報 サービス ファイル アップロード 更新 削除 追加 設定 管理 権限 ログイン パスワード 結果 分析 報告 モデル 回答 内容 質問 問題 必要 可能 開始 終了 エラー 修正 確かに ください ありがとう ございます 思います 考える 食べる 見る 行く 来る 新しい 大きい 小さい 美しい 研究 開発 技術 経済 学校 先生 学生 友達 値段 品質 製品 設計 計画 目標 完了 停止 薔薇 檸檬 蜻蛉 躊躇"
)

// clauses returns words of a list, with marks between clauses.
func clauses(size int, list string, marks []string) string {
	words := strings.Fields(list)
	r := rand.New(rand.NewPCG(3, uint64(len(words))))
	var text strings.Builder
	for text.Len() < size {
		for range 3 + r.IntN(8) {
			f := r.Float64()
			text.WriteString(words[int(f*f*float64(len(words)))])
		}
		text.WriteString(marks[r.IntN(len(marks))])
	}
	return strings.ToValidUTF8(text.String()[:size], "")
}

// hostileTexts returns texts of size bytes that are slow to merge, by name:
// what forms one long piece or a few, what repeats, and what does so nearly.
func hostileTexts(size int) map[string]string {
	r := rand.New(rand.NewPCG(5, 6))
	random := func(alphabet string, longest int) string {
		chars := strings.Split(alphabet, "")
		var text strings.Builder
		for text.Len() < size {
			text.WriteString(strings.Repeat(chars[r.IntN(len(chars))], 1+r.IntN(longest)))
		}
		return text.String()[:size]
	}
	return map[string]string{
		"one letter":                random("a", 1),
		"spaces":                    random(" ", 1),
		"dashes":                    random("-", 1),
		"zeroes":                    random("0", 1),
		"bytes 80":                  random("\x80", 1),
		"random letters":            random("abcdefghijklmnopqrstuvwxyz", 1),
		"two letters":               random("ab", 1),
		"random white space":        random(" \t\n\r", 1),
		"runs of two letters":       random("ab", 70),
		"runs of punctuation":       random("-=*#/_.", 150),
		"runs of dashes and equals": random("-=", 70),
		"runs of white space":       random("  \n", 20),
		"one word of ideographs":    random("的一是不了人我在有他这为之大来以个中上们", 1),
		"one word of Thai":          random("กขคงจฉชซดตถทนบปผพฟมยรลวสหอะาิีุู", 1),
		"base64":                    random("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", 1),
		"emoji":                     random("😀🎉👩💻🚀✨🔥👍🏽🇩🇪", 1),
	}
}
